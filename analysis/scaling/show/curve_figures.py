"""Figures of what the runs and the fitted law say: one function, one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.page.numbers import scientific
from analysis.page.style import (
    GREY,
    PAGE,
    RecurrenceStyle,
    budget_axis,
    budget_colours,
    count_axis,
    legend,
    panels,
    recurrence_handles,
    styled,
)
from analysis.scaling.allocation import FrontierGap, Optima
from analysis.scaling.isoflop import IsoFlopCurve

STAR: dict[str, Any] = {"marker": "*", "ms": 11, "mec": "white", "mew": 0.7}
RULE: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 4))}
REFUSED: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.5}


@styled
def isoflop_curves(curves: Sequence[IsoFlopCurve], width: float = PAGE) -> Figure:
    """Loss against unique parameters: colour by budget, line style by r, star at the vertex."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    colours = budget_colours([curve.budget for curve in curves])
    fig, (ax,) = panels(width, 1, 1, 4.9 if width >= PAGE else 4.4)
    ax.set_xscale("log")
    for curve in curves:
        _draw_curve(ax, curve, colours[curve.budget], styles)
    count_axis(ax.xaxis)
    ax.set_xlabel("unique non-embedding parameters N")
    ax.set_ylabel("validation loss (nats)")
    legend(fig, _curve_legend(styles, colours, curves), beside=True)
    return fig


@styled
def isoflop_panels(curves: Sequence[IsoFlopCurve], width: float = PAGE) -> Figure:
    """The same curves, one panel per r."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    colours = budget_colours([curve.budget for curve in curves])
    n = len(styles.recurrences)
    fig, axes = panels(width, n, 2, 2.6 if width >= PAGE else 2.1, sharex=True, sharey=True)
    for ax, r in zip(axes, styles.recurrences, strict=True):
        ax.set_xscale("log")
        for curve in curves:
            if curve.r == r:
                _draw_curve(ax, curve, colours[curve.budget], styles)
        ax.set_title(f"r = {r:g}", loc="left", fontweight="bold")
    count_axis(axes[0].xaxis, sparse=True)
    for ax in axes[-1:] if width < PAGE else axes[-2:]:
        ax.set_xlabel("unique non-embedding parameters N")
    fig.supylabel("validation loss (nats)", fontsize=9)
    legend(fig, _curve_legend(styles, colours, curves), beside=True)
    return fig


def _draw_curve(ax: Axes, curve: IsoFlopCurve, colour, styles: RecurrenceStyle) -> None:
    style = styles(curve.r)
    ax.plot(curve.n_params, curve.loss, style["marker"], color=colour, ms=4.6, mew=0.6, mec="white")
    if not np.isnan(curve.coefficients[0]):
        n = np.geomspace(curve.n_params[0], curve.n_params[-1], 80)
        weight: dict[str, Any] = {"linewidth": 1.3} if curve.refused is None else REFUSED
        ax.plot(n, curve.predict(n), color=colour, linestyle=style["linestyle"], **weight)
    if curve.refused is None:
        ax.plot(curve.n_opt, curve.loss_opt, color=colour, zorder=5, linestyle="none", **STAR)


def _curve_legend(
    styles: RecurrenceStyle, colours: Mapping, curves: Sequence[IsoFlopCurve]
) -> list[Line2D]:
    gap = Line2D([], [], linestyle="none", label="")
    handles = [
        Line2D([], [], linestyle="none", label="training FLOPs"),
        *(Line2D([], [], color=c, label=scientific(b), lw=2.5) for b, c in colours.items()),
        gap,
        *recurrence_handles(styles, colour=GREY),
        gap,
        Line2D([], [], color=GREY, linestyle="none", label="vertex", **STAR),
    ]
    if any(curve.refused for curve in curves):
        handles.append(Line2D([], [], color=GREY, label="no usable vertex", **REFUSED))
    return handles


@styled
def optimum(
    optima: Sequence[Optima], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """N*(C) and D*(C): vertices as points, the fitted law's minimum as lines."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    fig, axes = panels(width, 2, 2, 3.2 if width >= PAGE else 2.9)
    for ax, of_law, of_vertex, label in (
        (axes[0], "n_params", "n_opt", "optimal unique parameters N*"),
        (axes[1], "tokens", "tokens_opt", "optimal training tokens D*"),
    ):
        _log_log(ax)
        for o in optima:
            ax.plot(o.budgets, getattr(o, of_law), **styles.line(o.r))
        for r in styles.recurrences:
            kept = _with_vertex(curves, r)
            # One standard error of the vertex; none is known for three runs a curve.
            error = [np.nan_to_num(c.log_n_opt_se) * getattr(c, of_vertex) for c in kept]
            ax.errorbar(
                [c.budget for c in kept],
                [getattr(c, of_vertex) for c in kept],
                yerr=error if of_vertex == "n_opt" else None,
                elinewidth=0.8,
                **styles.points(r),
            )
        count_axis(ax.yaxis)
        budget_axis(ax.xaxis)
        ax.set_xlabel("training FLOPs C")
        ax.set_title(label, loc="left")
    handles = recurrence_handles(styles) + _definition_handles(optima)
    legend(fig, handles)
    return fig


@styled
def frontier(
    optima: Sequence[Optima], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """The lowest loss that each r reaches with C FLOPs."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    fig, (ax,) = panels(width, 1, 1, 3.5)
    ax.set_xscale("log")
    for o in optima:
        ax.plot(o.budgets, o.loss, **styles.line(o.r))
    for r in styles.recurrences:
        kept = _with_vertex(curves, r)
        ax.plot([c.budget for c in kept], [c.loss_opt for c in kept], **styles.points(r))
    budget_axis(ax.xaxis)
    ax.set_xlabel("training FLOPs C")
    ax.set_ylabel("compute-optimal loss L* (nats)")
    handles = recurrence_handles(styles) + _definition_handles(optima)
    legend(fig, handles)
    return fig


@styled
def frontier_gap(
    gaps: Sequence[FrontierGap], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """What looping costs: L*_r(C) − L*_1(C) with its bootstrap band, and between vertices."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    fig, (ax,) = panels(width, 1, 1, 3.1)
    ax.set_xscale("log")
    ax.axhline(0, color=GREY, linewidth=0.8)
    reference = {c.budget: c.loss_opt for c in _with_vertex(curves, 1)}
    for gap in gaps:
        ax.plot(gap.budgets, gap.gap, **styles.line(gap.r))
        if gap.ci95 is not None:
            low, high = gap.ci95
            ax.fill_between(
                gap.budgets, low, high, color=styles.line(gap.r)["color"], alpha=0.13, linewidth=0
            )
        kept = [c for c in _with_vertex(curves, gap.r) if c.budget in reference]
        ax.plot(
            [c.budget for c in kept],
            [c.loss_opt - reference[c.budget] for c in kept],
            **styles.points(gap.r),
        )
    budget_axis(ax.xaxis)
    ax.set_xlabel("training FLOPs C")
    ax.set_ylabel(r"$L^*_r(C) - L^*_1(C)$  (nats)")
    handles = [h for h in recurrence_handles(styles) if h.get_label() != "r = 1"]
    handles += _definition_handles(gaps)
    legend(fig, handles)
    return fig


@styled
def tokens_per_parameter(
    optima: Sequence[Optima], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """D*/N* against compute, N unique; every run as a faint point."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    fig, (ax,) = panels(width, 1, 1, 3.3)
    _log_log(ax)
    for curve in curves:
        faint = styles.points(curve.r) | {"markersize": 3, "alpha": 0.25, "markeredgewidth": 0}
        ax.plot(np.full(len(curve.loss), curve.budget), curve.tokens / curve.n_params, **faint)
    for o in optima:
        ax.plot(o.budgets, o.tokens / o.n_params, **styles.line(o.r))
    for r in styles.recurrences:
        kept = _with_vertex(curves, r)
        ax.plot(
            [c.budget for c in kept], [c.tokens_opt / c.n_opt for c in kept], **styles.points(r)
        )
    ax.axhline(20, **RULE)
    count_axis(ax.yaxis)
    budget_axis(ax.xaxis)
    ax.set_xlabel("training FLOPs C")
    ax.set_ylabel("tokens per unique parameter D*/N*")
    handles = recurrence_handles(styles) + _definition_handles(optima)
    handles.append(Line2D([], [], color=GREY, marker="o", ms=3, alpha=0.4, ls="none", label="runs"))
    handles.append(Line2D([], [], label="20 per parameter", **RULE))
    legend(fig, handles)
    return fig


def _with_vertex(curves: Sequence[IsoFlopCurve], r: float) -> list[IsoFlopCurve]:
    return [curve for curve in curves if curve.r == r and curve.refused is None]


def _log_log(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")


def _definition_handles(lines: Sequence) -> list[Line2D]:
    """Points and lines are two definitions of the optimum; every figure that shows both says so."""
    handles = [Line2D([], [], color=GREY, marker="o", ls="none", label="iso-FLOP vertices")]
    if lines:
        handles.append(Line2D([], [], color=GREY, label="minimum of the law"))
    return handles
