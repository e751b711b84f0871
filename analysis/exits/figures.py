"""Figures of exit policies: quality against loops and against compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.exits.results import UNIFORM, Exits, Point, order
from analysis.page.style import (
    GREY,
    PAGE,
    WARM,
    RecurrenceStyle,
    compact_axis,
    legend,
    literal,
    named,
    panels,
    signed_axis,
    styled,
)

MEAN_LINE: dict[str, Any] = {"color": WARM, "linewidth": 1.0, "linestyle": (0, (2, 2))}


@styled
def frontier(model: Exits, width: float = PAGE) -> Figure:
    """Loss against mean loops and against FLOPs per token, a line for each policy.

    The loss is that above the full-depth loss on the same tokens, on a scale that is linear near
    zero, since differences below a thousandth of a nat stand beside those of a tenth.
    """
    policies = [name for name in order([model]) if model.frontier(name, model.shown_carry)]
    style = RecurrenceStyle(range(len(policies)))
    fig, (left, right) = panels(width, 2, 2, 3.4, sharey=True)
    for i, policy in enumerate(policies):
        points = model.frontier(policy, model.shown_carry)
        bound = policy.startswith("oracle")
        _line(left, points, "mean_loops", style(i), bound)
        if not bound:
            _line(right, points, "flops", style(i), bound)
    values = [point.against_full_depth.value for point in model.points]
    for ax in (left, right):
        signed_axis(ax.yaxis, 0.002, (0.001, 0.01, 0.1, 1))
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.set_ylim(min(-0.002, 1.3 * min(values)), max(0.005, 1.3 * max(values)))
    for ax in (left, right) if width < PAGE else (left,):
        ax.set_ylabel(f"loss − loss at {model.recurrences} loops (nats)")
    left.axvline(model.mean, **MEAN_LINE)
    left.set_xlabel("mean loops per token")
    compact_axis(right.xaxis)
    right.set_xlabel("forward FLOPs per token, exit tests included")
    title = {"x": 0.01, "ha": "left", "fontsize": 9.5, "fontweight": "bold"}
    fig.suptitle(literal(model.run), **title)
    mean = Line2D([], [], label="training mean", **MEAN_LINE)
    legend(fig, [*named(policies, style), mean])
    return fig


@styled
def carries(model: Exits, policies: Sequence[str], width: float = PAGE) -> Figure:
    """What it changes what exited tokens show to others, a panel a policy."""
    style = RecurrenceStyle(range(len(model.carries)))
    fig, axes = panels(width, len(policies), 3, 2.5, sharey=True)
    for ax, policy in zip(axes, policies, strict=True):
        for i, carry in enumerate(model.carries):
            _line(ax, model.frontier(policy, carry), "mean_loops", style(i), False)
        signed_axis(ax.yaxis, 0.002, (0.001, 0.01, 0.1))
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.set_title(policy, loc="left", fontweight="bold")
        ax.set_xlabel("mean loops per token")
    for ax in axes if width < PAGE else axes[:1]:
        ax.set_ylabel("loss − full-depth loss (nats)")
    legend(fig, named(model.carries, style))
    return fig


def _line(ax: Axes, points: Sequence[Point], cost: str, style: dict[str, Any], bound: bool) -> None:
    x = [getattr(point, cost).value for point in points]
    y = [point.against_full_depth.value for point in points]
    thick = 2.0 if points and points[0].policy == UNIFORM else 1.1
    ax.errorbar(
        x, y, _errors(points), **style | {"linewidth": thick}, elinewidth=0.6, markersize=3.6,
        alpha=0.55 if bound else 1.0,
    )  # fmt: skip


def _errors(points: Sequence[Point]) -> np.ndarray:
    """Distances to the ends of the intervals, (2, points)."""
    pairs = [(p.against_full_depth.value, p.against_full_depth.ci95) for p in points]
    return np.array(
        [
            [max(value - ci[0], 0) if ci else 0.0 for value, ci in pairs],
            [max(ci[1] - value, 0) if ci else 0.0 for value, ci in pairs],
        ]
    )
