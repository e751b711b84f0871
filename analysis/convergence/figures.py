"""Figures of elastic depth and of convergence: one function, one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.convergence.results import Convergence, Elasticity
from analysis.estimate import Estimate
from analysis.page.style import (
    ACCENT,
    BAND,
    GREY,
    RecurrenceStyle,
    legend_below,
    new_figure,
    styled,
)

MEAN_LINE: dict[str, Any] = {"color": "#d55e00", "linewidth": 1.0, "linestyle": (0, (2, 2))}
MAX_PANELS = 6


@styled
def elasticity(models: Sequence[Elasticity]) -> Figure:
    """Loss at every depth, and its difference to the loss at the training mean."""
    fig = new_figure(7.2, 3.5)
    left, right = fig.subplots(1, 2)
    style = RecurrenceStyle(range(len(models)))
    for i, model in enumerate(models):
        loss = [each.value for each in model.loss]
        left.plot(model.depths, loss, label=model.run, **_few_marks(style(i), model.depths))
        at_mean = np.interp(model.mean, model.depths, loss)
        left.plot(model.mean, at_mean, "*", color=style(i)["color"], ms=10, mec="white", mew=0.6)
        x = model.depths / model.mean
        low, high = _bounds(model.difference)
        right.fill_between(x, low, high, color=style(i)["color"], alpha=0.15, linewidth=0)
        right.plot(x, [each.value for each in model.difference], **style.line(i))
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.axhline(0, color=GREY, linewidth=0.8)
    right.axvline(1, **MEAN_LINE)
    right.set_yscale("symlog", linthresh=0.003, linscale=0.8)
    right.set_yticks([-0.1, -0.01, 0, 0.01, 0.1, 1])
    right.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    right.set_ylim(*_widened([e.value for model in models for e in model.difference]))
    left.set_xlabel("recurrences")
    left.set_ylabel("validation loss (nats)")
    right.set_xlabel("recurrences / training mean")
    right.set_ylabel("loss − loss at the training mean (nats)")
    handles = [Line2D([], [], label=model.run, **style(i)) for i, model in enumerate(models)]
    star = Line2D([], [], color=GREY, marker="*", ms=9, ls="none", label="training mean")
    _legend_of_names(fig, [*handles, star])
    return fig


@styled
def kl_per_loop(models: Sequence[Convergence]) -> Figure:
    """KL(p_i ‖ p_{i−1}) over loops: median and quantile bands over tokens, one panel a model."""
    models = models[:MAX_PANELS]
    fig, axes = _panels(len(models), height=2.7)
    for ax, model in zip(axes, models, strict=True):
        q = model.kl_quantiles
        ax.set_yscale("log")
        ax.fill_between(model.loops, q[0.05], q[0.95], color=BAND, linewidth=0)
        ax.fill_between(model.loops, q[0.25], q[0.75], color=ACCENT, alpha=0.35, linewidth=0)
        ax.plot(model.loops, [e.value for e in model.kl_median], color=ACCENT)
        mean = [e.value for e in model.kl_mean]
        ax.plot(model.loops, mean, color="black", linestyle=(0, (5, 2)), lw=1.1)
        ax.axvline(model.mean, **MEAN_LINE)
        ax.set_title(model.run, loc="left", fontweight="bold")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("loop i")
    axes[0].set_ylabel("KL(pᵢ ‖ pᵢ₋₁) (nats)")
    legend_below(
        fig,
        [
            Line2D([], [], color=BAND, lw=6, label="5–95 %"),
            Line2D([], [], color=ACCENT, alpha=0.35, lw=6, label="25–75 %"),
            Line2D([], [], color=ACCENT, label="median"),
            Line2D([], [], color="black", linestyle=(0, (5, 2)), lw=1.1, label="mean"),
            Line2D([], [], label="training mean", **MEAN_LINE),
        ],
    )
    return fig


@styled
def motion(models: Sequence[Convergence]) -> Figure:
    """How much still moves: argmax, size of the step, angle of the step."""
    fig = new_figure(7.2, 2.9)
    style = RecurrenceStyle(range(len(models)))
    parts = (
        ("argmax_changed", "tokens whose argmax changed"),
        ("change", "‖hᵢ − hᵢ₋₁‖ / ‖hᵢ‖"),
        ("angle", "angle of hᵢ to hᵢ₋₁ (radians)"),
    )
    for ax, (name, label) in zip(fig.subplots(1, 3), parts, strict=True):
        ax.set_yscale("log")
        for i, model in enumerate(models):
            values = np.array([each.value for each in getattr(model, name)])
            low, high = _bounds(getattr(model, name))
            shown = values > 0
            colour = style(i)["color"]
            ax.fill_between(model.loops, low, high, color=colour, alpha=0.2, lw=0, where=shown)
            ax.plot(model.loops[shown], values[shown], **_few_marks(style(i), model.loops[shown]))
        ax.set_xlabel("loop i")
        ax.set_title(label, loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_of_names(
        fig, [Line2D([], [], label=model.run, **style(i)) for i, model in enumerate(models)]
    )
    return fig


@styled
def settling(models: Sequence[Convergence], epsilon: float) -> Figure:
    """Histogram of settling loops by token type: a row a model, a column a type."""
    models = models[:MAX_PANELS]
    types = [
        name
        for name in models[0].at(epsilon).groups["type"]
        if all(name in model.at(epsilon).groups["type"] for model in models) and name != "other"
    ]
    fig = new_figure(7.2, 1.35 * len(models) + 0.75)
    axes = fig.subplots(len(models), len(types) + 1, squeeze=False, sharey="row", sharex="row")
    for index, (row, model) in enumerate(zip(axes, models, strict=True)):
        whole = model.at(epsilon)
        for ax, name in zip(row, ["all", *types], strict=True):
            part = whole if name == "all" else whole.groups["type"][name]
            share = np.append(part.histogram, part.unsettled) / part.tokens
            positions = np.append(part.loops, part.loops[-1] + 1.5)
            colours = [ACCENT] * len(part.loops) + ["#d55e00"]
            ax.bar(positions, share, width=0.9, color=colours)
            ax.axvline(model.mean, **MEAN_LINE)
            ax.plot(part.median.value, 0, "^", color="black", ms=5, clip_on=False, zorder=5)
            ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            if index == 0:
                ax.set_title(_short(name, " ", 10), loc="left", fontsize=8.5)
            if index == len(models) - 1:
                ax.set_xlabel("loop", fontsize=8)
            ax.text(
                0.98, 0.9, f"n = {part.tokens:,}", transform=ax.transAxes, ha="right",
                fontsize=6.5, color=GREY,
            )  # fmt: skip
        row[0].set_ylabel(_short(model.run), fontsize=8)
    legend_below(
        fig,
        [
            Line2D([], [], color=ACCENT, lw=5, label="share of tokens"),
            Line2D([], [], color="#d55e00", lw=5, label="not settled"),
            Line2D([], [], color="black", marker="^", ls="none", ms=5, label="median"),
            Line2D([], [], label="training mean", **MEAN_LINE),
        ],
    )
    return fig


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(3, count)
    rows = -(-count // columns)
    fig = new_figure(7.2, height * rows + 0.3)
    axes = list(fig.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for ax in axes[count:]:
        ax.set_axis_off()
    return fig, axes[:count]


def _few_marks(style: dict[str, Any], x: np.ndarray) -> dict[str, Any]:
    """A line with a mark at about every eighth of its points."""
    return style | {"markevery": max(1, len(x) // 8)}


def _bounds(values: Sequence[Estimate]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of intervals; the value itself where there is none."""
    pairs = [each.ci95 or (each.value, each.value) for each in values]
    return np.array([low for low, _ in pairs]), np.array([high for _, high in pairs])


def _widened(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return min(-0.005, 1.5 * low), max(0.005, 1.5 * high)


def _legend_of_names(fig: Figure, handles: list[Line2D]) -> None:
    """Names of runs are long, so there are few in a row."""
    fig.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 3))


def _short(name: str, blank: str = "_", most: int = 16) -> str:
    """A long name in two lines, cut at its last `blank`."""
    if len(name) <= most or blank not in name:
        return name
    head, _, tail = name.rpartition(blank)
    return f"{head}\n{tail}"
