"""The figures of an inspection; the notebook shows the same ones."""

from collections.abc import Iterator

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from looped_jax.inspection.views import Inspection, PerLoop

_BLUE, _GREY = "#1f5fa8", "#777777"
# KL below this is shown as settled.
_FLOOR = 1e-7


def figures(inspection: Inspection) -> Iterator[tuple[str, Figure]]:
    """(file name, figure) of every view that is better seen than read."""
    yield "loops.png", loops(inspection)
    yield "passage.png", passage(inspection)
    yield "matrices.png", matrices(inspection)


def loops(inspection: Inspection) -> Figure:
    """Loss, KL and the norm of the state at every loop.

    The loss is shown against that at the mean depth, whose intervals are over the same tokens: they
    are far narrower than those of the loss itself.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    loss, kl, norm = figure.subplots(1, 3)
    _band(loss, inspection.gain, quantiles=False)
    at_mean = inspection.loss.mean[
        min(len(inspection.loss.loops), max(1, round(inspection.mean_depth))) - 1
    ]
    loss.axhline(0, color=_GREY, linewidth=0.6)
    loss.set_title(
        f"loss at the mean depth: {at_mean.value:.3f} ± {at_mean.standard_error:.3f} nats",
        fontsize=9,
    )
    loss.set_ylabel("loss if this loop were the last,\nminus that at the mean depth (nats)")
    _band(kl, inspection.kl, quantiles=True)
    if min(mean.value for mean in inspection.kl.mean) > 0:
        kl.set_yscale("log")
    kl.set_ylabel(r"KL$(p_i\,\|\,p_{i-1})$ (nats)")
    _band(norm, inspection.norm, quantiles=True)
    norm.set_ylim(bottom=0)
    norm.set_ylabel(r"$\|H_i\|$, norm of the state")
    for axes in (loss, kl, norm):
        axes.axvline(inspection.mean_depth, color=_GREY, linestyle=":", linewidth=1)
        axes.set_xlabel("loop i")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    loss.annotate(
        "mean depth in training", (inspection.mean_depth, 1), xycoords=("data", "axes fraction"),
        xytext=(4, -4), textcoords="offset points", va="top", fontsize=8, color=_GREY,
    )  # fmt: skip
    kl.legend(frameon=False, fontsize=8)
    figure.suptitle(f"{inspection.name}: {inspection.tokens:,} held-out tokens", fontsize=10)
    return figure


def passage(inspection: Inspection) -> Figure:
    """KL of every token of a passage at every loop: light still moves, dark has settled."""
    shown = inspection.passage
    tokens = [_visible(text) for text in shown.texts]
    height = 1.5 + 0.22 * len(shown.loops)
    figure = Figure(figsize=(11, height), layout="constrained")
    axes = figure.subplots()
    kl = np.maximum(shown.kl, _FLOOR)
    image = axes.imshow(
        kl, aspect="auto", cmap="viridis", origin="lower", interpolation="nearest",
        norm=LogNorm(_FLOOR, max(1.0, float(kl.max()))),
    )  # fmt: skip
    axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7, family="monospace")
    every = max(1, len(shown.loops) // 8)
    labels = [str(loop) for loop in shown.loops[::every]]
    axes.set_yticks(range(0, len(shown.loops), every), labels)
    axes.set_ylabel("loop i")
    axes.set_title(f"{inspection.name}: where the tokens of a passage settle", fontsize=10)
    figure.colorbar(image, ax=axes, label=r"KL$(p_i\,\|\,p_{i-1})$ (nats)", pad=0.01)
    return figure


def matrices(inspection: Inspection) -> Figure:
    """Largest singular value of every matrix, layer after layer."""
    table = inspection.matrices
    layered = table[table["layer"] >= 0]
    parts = [part for part in ("prelude", "core", "coda") if part in set(layered["part"])]
    places = {
        place: number
        for number, place in enumerate(
            (part, layer)
            for part in parts
            for layer in sorted(set(layered.loc[layered["part"] == part, "layer"]))
        )
    }
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["tab10"]
    for number, (name, rows) in enumerate(layered.groupby("matrix", sort=False)):
        x = [places[place] for place in zip(rows["part"], rows["layer"], strict=True)]
        order = np.argsort(x)
        axes.plot(
            np.asarray(x)[order], rows["spectral"].to_numpy()[order], "o-", color=colours(number),
            linewidth=0.8, markersize=4, label=name,
        )  # fmt: skip
    axes.set_xticks(
        list(places.values()), [f"{part} {layer}" for part, layer in places], fontsize=8,
        rotation=90 if len(places) > 12 else 0,
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_ylabel("largest singular value")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title(f"{inspection.name}: matrices by layer", fontsize=10)
    return figure


def _band(axes: Axes, values: PerLoop, *, quantiles: bool) -> None:
    """The mean with its 95 % interval; the spread over tokens behind it."""
    mean = np.array([estimate.value for estimate in values.mean])
    ends_R2 = np.array([estimate.ci95 for estimate in values.mean])
    if quantiles:
        low, middle, high = (values.quantiles[q] for q in sorted(values.quantiles))
        axes.fill_between(values.loops, low, high, color=_BLUE, alpha=0.12, linewidth=0,
                          label="5 % to 95 % of tokens")  # fmt: skip
        axes.plot(values.loops, middle, color=_BLUE, linewidth=1, linestyle="--", label="median")
    spread = np.abs(ends_R2.T - mean)
    axes.errorbar(values.loops, mean, yerr=spread, fmt="o-", color=_BLUE, markersize=3,
                  linewidth=1.2, capsize=2, label="mean, 95 % interval")  # fmt: skip


def _visible(text: str) -> str:
    return repr(text)[1:-1].replace(" ", "␣").replace("$", r"\$")
