"""Figures of exit policies: quality against loops and against compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.exits.results import UNIFORM, Exits, order
from analysis.page.style import GREY, RecurrenceStyle, empty, new_figure, styled

MEAN_LINE: dict[str, Any] = {"color": "#d55e00", "linewidth": 1.0, "linestyle": (0, (2, 2))}


@styled
def frontier(model: Exits) -> Figure:
    """Loss against mean loops and against FLOPs per token, a line for each policy.

    The loss is that above the full-depth loss on the same tokens, on a scale that is linear near
    zero, since differences below a thousandth of a nat stand beside those of a tenth.
    """
    policies = [name for name in order([model]) if model.frontier(name, model.shown_carry)]
    style = RecurrenceStyle(range(len(policies)))
    fig = new_figure(7.2, 4.0)
    left, right = fig.subplots(1, 2, sharey=True)
    for i, policy in enumerate(policies):
        points = model.frontier(policy, model.shown_carry)
        bound = policy.startswith("oracle")
        _line(left, points, "mean_loops", style(i), bound)
        if not bound:
            _line(right, points, "flops", style(i), bound)
    values = [point.against_full_depth.value for point in model.points]
    for ax in (left, right):
        ax.set_yscale("symlog", linthresh=0.002, linscale=0.8)
        ax.set_yticks([-0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1])
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
        ax.set_ylim(min(-0.002, 1.3 * min(values)), max(0.005, 1.3 * max(values)))
        ax.axhline(0, color=GREY, linewidth=0.8)
    left.axvline(model.mean, **MEAN_LINE)
    left.set_xlabel("mean loops per token")
    left.set_ylabel(f"loss − loss at {model.recurrences} loops (nats)")
    right.set_xlabel("forward FLOPs per token, exit tests included")
    right.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}M")
    fig.suptitle(model.run, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    handles = [Line2D([], [], label=policy, **style(i)) for i, policy in enumerate(policies)]
    handles.append(Line2D([], [], label="training mean", **MEAN_LINE))
    fig.legend(handles=handles, loc="outside lower center", ncols=5)
    return fig


@styled
def carries(model: Exits, policies: Sequence[str]) -> Figure:
    """What it changes what exited tokens show to others, a panel a policy."""
    style = RecurrenceStyle(range(len(model.carries)))
    fig = new_figure(7.2, 2.8)
    axes = np.atleast_1d(fig.subplots(1, max(1, len(policies)), sharey=True))
    if not policies:
        empty(axes[0], "only uniform depth was measured")
    for ax, policy in zip(axes, policies, strict=False):
        for i, carry in enumerate(model.carries):
            points = model.frontier(policy, carry)
            x = [point.mean_loops.value for point in points]
            y = [point.against_full_depth.value for point in points]
            ax.errorbar(x, y, _errors(points), **style(i), elinewidth=0.7, markersize=3.6)
        ax.set_yscale("symlog", linthresh=0.002, linscale=0.8)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
        ax.set_yticks([-0.01, -0.001, 0, 0.001, 0.01, 0.1])
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.set_title(policy, loc="left", fontweight="bold")
        ax.set_xlabel("mean loops per token")
    axes[0].set_ylabel("loss − full-depth loss (nats)")
    handles = [Line2D([], [], label=carry, **style(i)) for i, carry in enumerate(model.carries)]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    return fig


def _line(ax: Axes, points: Sequence, cost: str, style: dict[str, Any], bound: bool) -> None:
    x = [getattr(point, cost).value for point in points]
    y = [point.against_full_depth.value for point in points]
    width = 2.0 if points and points[0].policy == UNIFORM else 1.1
    ax.errorbar(
        x, y, _errors(points), **style | {"linewidth": width}, elinewidth=0.6, markersize=3.6,
        alpha=0.55 if bound else 1.0,
    )  # fmt: skip


def _errors(points: Sequence) -> np.ndarray:
    """Distances to the ends of the intervals, (2, points)."""
    pairs = [(p.against_full_depth.value, p.against_full_depth.ci95) for p in points]
    return np.array(
        [
            [max(value - ci[0], 0) if ci else 0.0 for value, ci in pairs],
            [max(ci[1] - value, 0) if ci else 0.0 for value, ci in pairs],
        ]
    )
