"""Figures of φ and of how well the law fits: one function, one figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.laws.law import Law
from analysis.page.chart import Curve, Panel, Rule, chart
from analysis.page.numbers import signed
from analysis.page.style import (
    ACCENT,
    BAND,
    GREY,
    PAGE,
    RecurrenceStyle,
    budget_axis,
    count_axis,
    new_figure,
    panels,
    styled,
)
from analysis.tables.estimate import Estimate


@dataclass(frozen=True)
class PhiRow:
    """One line of a forest plot; without φ it is a heading."""

    label: str
    phi: float | None = None
    ci95: tuple[float, float] | None = None
    ours: bool = True

    @property
    def estimate(self) -> Estimate | None:
        return None if self.phi is None else Estimate(self.phi, None, self.ci95)


# Where the axis of φ ends at the latest, unless φ itself lies beyond.
WIDEST_PHI = (-0.6, 1.6)


@styled
def phi_interval(
    phi: float, ci95: tuple[float, float] | None, r_max: float, width: float = PAGE
) -> Figure:
    """φ and its interval between 0 (a repetition adds nothing) and 1 (it is worth new layers).

    An interval that reaches far beyond 0 or 1 ends in an arrow at the figure's edge.
    """
    fig = new_figure(width, 1.95 if width >= PAGE else 2.2)
    ax = fig.subplots()
    low, high = ci95 or (phi, phi)
    left = min(max(min(-0.12, low - 0.08), WIDEST_PHI[0]), phi - 0.2)
    right = max(min(max(1.12, high + 0.08), WIDEST_PHI[1]), phi + 0.2)
    ax.set_xlim(left, right)
    ax.set_ylim(-1, 1)
    ax.axvspan(0, 1, color=BAND, alpha=0.5, linewidth=0)
    for edge in (0, 1):
        ax.axvline(edge, color=GREY, linewidth=1)
    if ci95 is not None:
        ax.plot([low, high], [0, 0], color=ACCENT, linewidth=6, solid_capstyle="butt", alpha=0.55)
        for end, at, side, arrow in ((low, left, "right", "<"), (high, right, "left", ">")):
            text = signed(end)
            if left < end < right:
                ax.annotate(text, (end, -0.28), ha=side, va="top", color=ACCENT, fontsize=8)
            else:
                inside = {"right": "left", "left": "right"}[side]
                ax.plot(at, 0, arrow, color=ACCENT, markersize=11, clip_on=False)
                ax.annotate(text, (at, -0.28), ha=inside, va="top", color=ACCENT, fontsize=8)
    ax.plot(phi, 0, "o", color=ACCENT, markersize=9, markeredgecolor="white")
    ax.annotate(f"φ = {signed(phi)}", (phi, 0.2), ha="center", va="bottom", fontweight="bold")
    edge_text: dict[str, Any] = {"va": "top", "fontsize": 8, "color": GREY}
    none, full = " repeating adds nothing", "as good as unshared layers "
    if width < PAGE:
        none, full = " repeating\n adds nothing", "as good as \nunshared layers "
    ax.annotate(none, (0, 0.93), ha="left", **edge_text)
    ax.annotate(full, (1, 0.93), ha="right", **edge_text)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(False)
    ax.set_xlabel("recurrence-equivalence exponent φ")
    top = ax.secondary_xaxis("top")
    worth = [w for w in _worth_ticks(r_max) if left <= np.log(w) / np.log(r_max) <= right]
    top.set_xticks([float(np.log(w) / np.log(r_max)) for w in worth], [f"{w:g}×" for w in worth])
    top.set_xlabel(f"a block run {r_max:g} times counts as … blocks", fontsize=8.5)
    return fig


def _worth_ticks(r_max: float) -> list[float]:
    powers = [2.0**k for k in range(int(np.log2(r_max)) + 3)]
    return [1.5, *powers] if r_max < 32 else powers


@styled
def forest(rows: Sequence[PhiRow], width: float = PAGE) -> Figure:
    """φ with its 95 % interval over studies and over parts of this one, first row on top.

    On a narrow page labels stand above their lines, not beside them.
    """
    narrow = width < PAGE
    fig = new_figure(width, 0.7 + (0.36 if narrow else 0.23) * len(rows))
    ax = fig.subplots()
    ax.axvspan(0, 1, color=BAND, alpha=0.5, linewidth=0)
    for edge in (0, 1):
        ax.axvline(edge, color=GREY, linewidth=0.8)
    heights = np.arange(len(rows))[::-1]
    for y, row in zip(heights, rows, strict=True):
        if row.phi is not None:
            _forest_row(ax, y - 0.25 * narrow, row, row.phi)
        if narrow:
            weight = "bold" if row.phi is None else "normal"
            place = ax.get_yaxis_transform()
            ax.text(0.01, y, row.label, transform=place, fontsize=8, va="bottom", weight=weight)
    ax.set_yticks([] if narrow else heights, [] if narrow else [row.label for row in rows])
    for label, row in zip(ax.get_yticklabels(), rows, strict=False):
        label.set_fontweight("bold" if row.phi is None else "normal")
    ax.set_ylim(-0.6, len(rows) - 0.4)
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, -0.05), max(high, 1.05))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(False, axis="y")
    ax.set_xlabel("φ")
    return fig


def _forest_row(ax: Axes, y: float, row: PhiRow, phi: float) -> None:
    colour = ACCENT if row.ours else "black"
    text = f"{phi:.2f}"
    if row.ci95 is not None:
        ax.plot(row.ci95, [y, y], color=colour, linewidth=1.8)
        text += f"  [{row.ci95[0]:.2f}, {row.ci95[1]:.2f}]"
    ax.plot(phi, y, "o" if row.ours else "D", color=colour, markersize=5)
    ax.annotate(
        text.replace("-", "−"),
        (1.01, y),
        xycoords=("axes fraction", "data"),
        va="center",
        color=colour,
        fontsize=8,
        annotation_clip=False,
    )


def predicted_against_actual(runs: pd.DataFrame, width: float = PAGE) -> Figure:
    """Each run's loss against the law's: on the diagonal the law is exact."""
    ends = runs[["loss", "predicted"]].min().min(), runs[["loss", "predicted"]].max().max()
    panel = Panel(
        [Curve(ends, ends, {"color": GREY, "linewidth": 0.8}), *_by_r(runs, "predicted", "loss")],
        "loss of the law (nats)",
        "measured loss (nats)",
        finish=lambda ax: ax.set_aspect("equal"),
    )
    return chart([panel], min(4.6, width), height=min(4.3, width + 0.1))


def residuals(runs: pd.DataFrame, width: float = PAGE) -> Figure:
    """Measured minus predicted loss against N_eff, D, C and r: structure here is a wrong law."""
    sparse = lambda axis: count_axis(axis, sparse=True)
    label, zero = "measured − law (nats)", [Rule(0, "y")]
    parts = [
        Panel(_by_r(runs, name, "residual"), x, label, log="x", rules=zero, x_ticks=ticks)
        for name, x, ticks in (
            ("n_effective", r"effective parameters $N_{once} + r^{\varphi} N_{rec}$", sparse),
            ("tokens", "training tokens D", sparse),
            ("train_flops", "training FLOPs C", budget_axis),
        )
    ]
    styles = RecurrenceStyle(runs["r"])
    names = [f"{r:g}" for r in styles.recurrences]
    ticks = lambda axis: axis.set_ticks(range(len(names)), names)
    x = "recurrences r  (right of the runs: mean ± s.d.)"
    parts.append(Panel(_residuals_by_r(runs, styles), x, label, rules=zero, x_ticks=ticks))
    height = 2.4 if width >= PAGE else 1.9
    return chart(parts, width, columns=2, height=height, sharey=True)


def _by_r(runs: pd.DataFrame, x: str, y: str) -> list[Curve]:
    styles = RecurrenceStyle(runs["r"])
    look = {"markeredgecolor": "white", "mew": 0.5}
    return [
        Curve(mine[x], mine[y], styles.points(r) | look, f"r = {r:g}")
        for r, mine in runs.groupby("r")
    ]


def _residuals_by_r(runs: pd.DataFrame, styles: RecurrenceStyle) -> list[Curve]:
    """Every run, spread sideways in table order, with the mean and one standard deviation."""
    drawn = []
    for i, (r, mine) in enumerate(runs.groupby("r")["residual"]):
        small = styles.points(r) | {"markersize": 3, "markeredgewidth": 0}
        x = i + np.linspace(-0.28, 0.06, len(mine))
        drawn.append(Curve(x, mine, small, faint=0.55))
        mean, spread = mine.mean(), mine.std() if len(mine) > 1 else 0.0
        look, low, high = styles.points(r) | {"capsize": 3}, mean - spread, mean + spread
        drawn.append(Curve([i + 0.24], [mean], look, low=[low], high=[high], bars=True))
    return drawn


@styled
def bootstrap_histograms(
    law: Law,
    resamples: pd.DataFrame,
    estimates: Mapping[str, float],
    intervals: Mapping,
    width: float = PAGE,
) -> Figure:
    """The resampled parameters: estimate as a line, central 95 % shaded; wide ones on log axes."""
    names = list(resamples)
    fig, axes = panels(width, len(names), 3, 1.7, narrow=2)
    for ax, name in zip(axes, names, strict=True):
        values = resamples[name].to_numpy(np.float64)
        values = values[np.isfinite(values)]
        bins = np.histogram_bin_edges(values, bins=24)
        wide = values.min() > 0 and values.max() > 10 * values.min()
        if wide and name in law.coefficients:
            ax.set_xscale("log")
            bins = np.geomspace(values.min(), values.max(), 25)
        if intervals.get(name) is not None:
            ax.axvspan(*intervals[name], color=BAND, linewidth=0)
        ax.hist(values, bins=list(bins), color=ACCENT, alpha=0.75)
        ax.axvline(estimates[name], color="black", linewidth=1.2)
        ax.set_title(law.symbols[name], loc="left", fontweight="bold")
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.grid(False)
        if wide and name in law.coefficients:
            count_axis(ax.xaxis, sparse=True)
    return fig
