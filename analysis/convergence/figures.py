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
    LEGEND_ROW,
    PAGE,
    WARM,
    RecurrenceStyle,
    legend,
    literal,
    named,
    new_figure,
    panels,
    signed_axis,
    styled,
)

MEAN_LINE: dict[str, Any] = {"color": WARM, "linewidth": 1.0, "linestyle": (0, (2, 2))}
MEAN_OF_TOKENS: dict[str, Any] = {"color": "black", "linestyle": (0, (5, 2)), "linewidth": 1.1}
MAX_PANELS = 6


@styled
def elasticity(models: Sequence[Elasticity], width: float = PAGE) -> Figure:
    """Loss at every depth, and its difference to the loss at the training mean."""
    fig, (left, right) = panels(width, 2, 2, 3.2)
    style = RecurrenceStyle(range(len(models)))
    for i, model in enumerate(models):
        loss = [each.value for each in model.loss]
        left.plot(model.depths, loss, **_few_marks(style(i), model.depths))
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
    signed_axis(right.yaxis, 0.003, (0.01, 0.1, 1))
    right.set_ylim(*_widened([e.value for model in models for e in model.difference]))
    left.set_xlabel("recurrences")
    left.set_ylabel("validation loss (nats)")
    right.set_xlabel("recurrences / training mean")
    right.set_ylabel("loss − loss at the training mean (nats)")
    star = Line2D([], [], color=GREY, marker="*", ms=9, ls="none", label="training mean")
    legend(fig, [*named([model.run for model in models], style), star])
    return fig


@styled
def kl_per_loop(models: Sequence[Convergence], width: float = PAGE) -> Figure:
    """KL(p_i ‖ p_{i−1}) over loops: median and quantile bands over tokens, one panel a model."""
    models = models[:MAX_PANELS]
    fig, axes = panels(width, len(models), 3, 2.7, sharey=True)
    for ax, model in zip(axes, models, strict=True):
        q = model.kl_quantiles
        ax.set_yscale("log")
        ax.fill_between(model.loops, q[0.05], q[0.95], color=BAND, linewidth=0)
        ax.fill_between(model.loops, q[0.25], q[0.75], color=ACCENT, alpha=0.35, linewidth=0)
        ax.plot(model.loops, [e.value for e in model.kl_median], color=ACCENT)
        ax.plot(model.loops, [e.value for e in model.kl_mean], **MEAN_OF_TOKENS)
        ax.axvline(model.mean, **MEAN_LINE)
        ax.set_title(literal(model.run), loc="left", fontweight="bold")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("loop i")
    for ax in axes if width < PAGE else axes[:1]:
        ax.set_ylabel("KL(pᵢ ‖ pᵢ₋₁) (nats)")
    legend(
        fig,
        [
            Line2D([], [], color=BAND, lw=6, label="5–95 %"),
            Line2D([], [], color=ACCENT, alpha=0.35, lw=6, label="25–75 %"),
            Line2D([], [], color=ACCENT, label="median"),
            Line2D([], [], label="mean", **MEAN_OF_TOKENS),
            Line2D([], [], label="training mean", **MEAN_LINE),
        ],
    )
    return fig


@styled
def motion(models: Sequence[Convergence], width: float = PAGE) -> Figure:
    """How much still moves: argmax, size of the step, angle of the step."""
    fig, axes = panels(width, 3, 3, 2.6)
    style = RecurrenceStyle(range(len(models)))
    parts = (
        ("argmax_changed", "tokens whose argmax changed"),
        ("change", "‖hᵢ − hᵢ₋₁‖ / ‖hᵢ‖"),
        ("angle", "angle of hᵢ to hᵢ₋₁ (radians)"),
    )
    for ax, (name, label) in zip(axes, parts, strict=True):
        ax.set_yscale("log")
        for i, model in enumerate(models):
            values = np.array([each.value for each in getattr(model, name)])
            low, high = _bounds(getattr(model, name))
            shown = values > 0
            colour = style(i)["color"]
            ax.fill_between(model.loops, low, high, color=colour, alpha=0.2, lw=0, where=shown)
            ax.plot(model.loops[shown], values[shown], **_few_marks(style(i), model.loops[shown]))
        ax.set_xlabel("loop i")
        ax.set_title(label, loc="left", fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(fig, named([model.run for model in models], style))
    return fig


@styled
def settling(models: Sequence[Convergence], epsilon: float, width: float = PAGE) -> Figure:
    """Histogram of settling loops by token type: a row a model, a column a type.

    On a narrow page, where the columns would be too thin, all tokens alone.
    """
    models = models[:MAX_PANELS]
    types = [
        name
        for name in models[0].at(epsilon).groups["type"]
        if all(name in model.at(epsilon).groups["type"] for model in models) and name != "other"
    ]
    columns = ["all", *types] if width >= PAGE else ["all"]
    fig = new_figure(width, 1.45 * len(models) + LEGEND_ROW + 0.5)
    axes = fig.subplots(len(models), len(columns), squeeze=False, sharey="row", sharex="row")
    for index, (row, model) in enumerate(zip(axes, models, strict=True)):
        for ax, name in zip(row, columns, strict=True):
            _histogram(ax, model, epsilon, name)
            if index == 0:
                ax.set_title(_two_lines(name, " ", 10), loc="left", fontsize=8.5)
            if index == len(models) - 1:
                ax.set_xlabel("loop", fontsize=8)
        row[0].set_ylabel(_two_lines(literal(model.run)), fontsize=8)
    legend(
        fig,
        [
            Line2D([], [], color=ACCENT, lw=5, label="share of tokens"),
            Line2D([], [], color=WARM, lw=5, label="not settled"),
            Line2D([], [], color="black", marker="^", ls="none", ms=5, label="median"),
            Line2D([], [], label="training mean", **MEAN_LINE),
        ],
    )
    return fig


def _histogram(ax: Axes, model: Convergence, epsilon: float, name: str) -> None:
    whole = model.at(epsilon)
    part = whole if name == "all" else whole.groups["type"][name]
    share = np.append(part.histogram, part.unsettled) / part.tokens
    positions = np.append(part.loops, part.loops[-1] + 1.5)
    ax.bar(positions, share, width=0.9, color=[ACCENT] * len(part.loops) + [WARM])
    ax.axvline(model.mean, **MEAN_LINE)
    ax.plot(part.median.value, 0, "^", color="black", ms=5, clip_on=False, zorder=5)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.text(
        0.98, 0.9, f"n = {part.tokens:,}", transform=ax.transAxes, ha="right", fontsize=7,
        color=GREY,
    )  # fmt: skip


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


def _two_lines(name: str, blank: str = "_", most: int = 16) -> str:
    """A long name in two lines, cut at its last `blank`."""
    if len(name) <= most or blank not in name:
        return name
    head, _, tail = name.rpartition(blank)
    return f"{head}\n{tail}"
