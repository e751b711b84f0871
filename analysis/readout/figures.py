"""Figures of the readout study: one function, one figure; a colour and a mark a condition.

Lines are means over seeds (geometric for scales), bands reach from the least seed to the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.estimate import Estimate
from analysis.page.numbers import compact
from analysis.page.style import (
    GREY,
    PAGE,
    RecurrenceStyle,
    empty,
    legend,
    named,
    panels,
    signed_axis,
    styled,
)
from analysis.readout.claims import UNSEEN
from analysis.readout.results import Group, Readout

TRAINED_LINE: dict[str, Any] = {"color": "#888888", "linewidth": 1.0, "linestyle": (0, (2, 2))}
CLAMPS = {"rescaled": "norm held at loop 1's", "tangential": "no radial update"}
#: The frontier reaches up to so many times the highest perplexity of a trained depth.
SHOWN_PERPLEXITY = 1.2


@styled
def norm_growth(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """Mean norm of the state after every loop, and how far its tail is from the middle."""
    fig, (left, right) = panels(width, 2, 2, 3.1)
    style = _styles(groups)
    for ax in (left, right):
        ax.set_yscale("log")
    for i, each in enumerate(groups):
        loops = np.arange(each.loops + 1)
        _line(left, loops, _values(each, lambda run: run.norm["mean"]), style(i))
        tail = lambda run: _ratios(run.norm["p99"], run.norm["median"])
        _line(right, loops, _values(each, tail), style(i))
    for ax in (left, right):
        _loop_axis(ax, groups)
        _plain_log_ticks(ax)
    left.set_ylabel("mean ‖hᵢ‖ over tokens")
    right.set_ylabel("99th percentile / median of ‖hᵢ‖")
    _legend(fig, groups)
    return fig


@styled
def radial_fraction(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """How much of the gradient lies along the state: of a loop's own loss, and of the objective."""
    fig, axes = panels(width, 2, 2, 3.1, sharey=True)
    style = _styles(groups)
    parts = (("immediate", "loss read from the state"), ("objective", "training objective"))
    measured = [e.value for g in groups for run in g.runs for e in (*run.immediate, *run.objective)]
    axes[0].set_yscale("log")
    axes[0].set_ylim(min([1e-9, *(x / 2 for x in measured if x > 0)]), 2)
    for ax, (name, title) in zip(axes, parts, strict=True):
        for i, each in enumerate(groups):
            rows = _values(each, attrgetter(name))
            _line(ax, np.arange(1, rows.shape[1] + 1), rows, style(i))
        ax.set_title(f"of the {title}", loc="left")
        _loop_axis(ax, groups)
        ax.axhspan(1e-12, UNSEEN / 10, color="#eeeeee", zorder=0)
        ax.yaxis.set_major_locator(LogLocator(numticks=12))
        ax.yaxis.set_minor_locator(NullLocator())
    axes[0].text(1.02, UNSEEN / 13, "rounding, RMSNorm's ε", fontsize=7, color=GREY, va="top")
    for ax in axes if width < PAGE else axes[:1]:
        ax.set_ylabel("|⟨∇L, h⟩| / ‖∇L‖‖h‖")
    _legend(fig, groups)
    return fig


@styled
def frontier(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """Perplexity against measured throughput and against FLOPs, a mark a loop, a star at K."""
    fig, (left, right) = panels(width, 2, 2, 3.3, sharey=True)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_yscale("log")
    style = _styles(groups)
    best, highest = np.inf, 0.0
    for i, each in enumerate(groups):
        perplexity = _mean(_values(each, lambda run: run.perplexity))
        best = min(best, perplexity.min())
        highest = max(highest, perplexity[each.trained_loops - 1])
        speed = np.exp(np.mean([np.log(run.tokens_per_second) for run in each.runs], 0))
        flops = each.runs[0].flops
        for ax, x in ((left, speed), (right, flops)):
            ax.plot(x, perplexity, **style(i) | {"markersize": 3.2, "linewidth": 1.0})
            k = each.trained_loops - 1
            ax.plot(x[k], perplexity[k], "*", color=style(i)["color"], ms=11, mec="white", mew=0.6)
    for ax in (left, right):
        ax.set_ylim(best / 1.03, highest * SHOWN_PERPLEXITY)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        _plain_log_ticks(ax)
    left.set_xlabel("tokens per second (measured)")
    left.invert_xaxis()
    right.set_xlabel("forward FLOPs per token")
    for ax in (left, right) if width < PAGE else (left,):
        ax.set_ylabel("perplexity")
    star = Line2D([], [], color=GREY, marker="*", ms=9, ls="none", label="trained loops")
    _legend(fig, groups, star)
    return fig


@styled
def angular_step(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """Angle of an update against 1 / s: of every loop, and of one state at several scales."""
    fig, (left, right) = panels(width, 2, 2, 3.2, sharey=True)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("1 / s")
    style = _styles(groups)
    for i, each in enumerate(groups):
        for run in each.runs:
            size, angle = _points(run.update["size"][1:], run.update["angle"][1:])
            left.plot(1 / size, angle, **style(i) | {"linewidth": 0.7, "markersize": 3})
            size, angle = _points(run.probe["size"], run.probe["angle"])
            right.plot(1 / size, angle, **style(i) | {"linewidth": 0.9, "markersize": 3.6})
    left.set_title("loops 2 … R", loc="left")
    right.set_title("h of the trained depth, scaled", loc="left")
    for ax in (left, right):
        _slope_one(ax)
    for ax in (left, right) if width < PAGE else (left,):
        ax.set_ylabel("mean angular step (radians)")
    line = Line2D([], [], label="∝ 1 / s", **TRAINED_LINE)
    _legend(fig, groups, line)
    return fig


@styled
def clamps(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """What it does to the loss to take the scale out of the loop, at every loop."""
    fig, axes = panels(width, 2, 2, 3.1, sharey=True)
    style = _styles(groups)
    largest = 0.0
    for ax, (name, title) in zip(axes, CLAMPS.items(), strict=True):
        for i, each in enumerate(groups):
            rows = np.array([[e.value for e in run.clamps[name]] for run in each.runs])
            loops = np.arange(1, rows.shape[1] + 1)
            _line(ax, loops, rows, style(i), mean=np.mean)
            largest = max(largest, float(np.abs(rows).max()))
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.set_title(title, loc="left")
        _loop_axis(ax, groups)
    for ax in axes:
        signed_axis(ax.yaxis, 0.01, [t for t in (0.01, 0.1, 1.0, 10.0) if t <= 2 * largest])
    for ax in axes if width < PAGE else axes[:1]:
        ax.set_ylabel("loss − loss without the clamp (nats)")
    _legend(fig, groups)
    return fig


def _styles(groups: Sequence[Group]) -> RecurrenceStyle:
    return RecurrenceStyle(range(len(groups)))


def _values(group: Group, of: Callable[[Readout], Sequence[Estimate]]) -> np.ndarray:
    """(seeds, loops); NaN where there is no number."""
    return np.array([[each.value for each in of(run)] for run in group.runs])


def _ratios(above: Sequence[Estimate], below: Sequence[Estimate]) -> list[Estimate]:
    pairs = zip(above, below, strict=True)
    return [Estimate(a.value / b.value if b.value else np.nan, None, None) for a, b in pairs]


def _mean(rows: np.ndarray) -> np.ndarray:
    """Geometric over seeds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(np.mean(np.log(rows), axis=0))


def _line(
    ax: Axes,
    loops: np.ndarray,
    rows: np.ndarray,
    style: dict[str, Any],
    mean: Callable[..., np.ndarray] | None = None,
) -> None:
    centre = _mean(rows) if mean is None else mean(rows, axis=0)
    shown = np.isfinite(centre)
    low, high = rows.min(axis=0), rows.max(axis=0)
    ax.fill_between(loops, low, high, where=shown, color=style["color"], alpha=0.18, linewidth=0)
    marks = {"markevery": max(1, shown.sum() // 8), "markersize": 3.8}
    ax.plot(loops[shown], centre[shown], **style | marks)


def _points(x: Sequence[Estimate], y: Sequence[Estimate]) -> tuple[np.ndarray, np.ndarray]:
    """The pairs that are positive numbers."""
    pairs = np.array([[a.value, b.value] for a, b in zip(x, y, strict=True)]).reshape(-1, 2)
    kept = np.isfinite(pairs).all(axis=1) & (pairs > 0).all(axis=1)
    return pairs[kept, 0], pairs[kept, 1]


def _loop_axis(ax: Axes, groups: Sequence[Group]) -> None:
    ax.set_xlabel("loop i")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for trained in sorted({each.trained_loops for each in groups}):
        ax.axvline(trained, **TRAINED_LINE)


def _plain_log_ticks(ax: Axes) -> None:
    """Plain numbers, dense where the axis spans little."""
    low, high = ax.get_ylim()
    decades = np.log10(high / low)
    if decades < 0.35:
        ax.yaxis.set_major_locator(MaxNLocator(6))
    else:
        subs = (1, 2, 5) if decades < 3 else (1,)
        ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=14))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _slope_one(ax: Axes) -> None:
    """A line of slope one through the middle of what is drawn."""
    points = [np.asarray(line.get_xydata()) for line in ax.lines]
    if not sum(map(len, points)):
        empty(ax, "no update was measured")
        return
    log = np.log(np.concatenate(points))
    middle = np.exp(np.median(log, axis=0))
    ends = np.exp([log[:, 0].min(), log[:, 0].max()])
    limits = ax.get_ylim()
    ax.plot(ends, middle[1] * ends / middle[0], zorder=0, **TRAINED_LINE)
    ax.set_ylim(limits)


def _legend(fig: Figure, groups: Sequence[Group], *others: Line2D) -> None:
    legend(fig, [*named([each.label for each in groups], _styles(groups)), *others])
