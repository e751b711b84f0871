"""Figures of what the runs and the fitted law say: one function, one figure."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from analysis.page.chart import STAR, Curve, Panel, Rule, chart
from analysis.page.numbers import scientific
from analysis.page.style import (
    GREY,
    PAGE,
    RecurrenceStyle,
    budget_axis,
    budget_colours,
    count_axis,
    recurrence_handles,
)
from analysis.scaling.allocation import FrontierGap, Optima
from analysis.scaling.isoflop import IsoFlopCurve

Quantity = Callable[[IsoFlopCurve], float]

TWENTY: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 4))}
REFUSED: dict[str, Any] = {"linewidth": 0.6}
SIZE, COMPUTE = "unique non-embedding parameters N", "training FLOPs C"


# --- the runs of every budget ---------------------------------------------------------------------


def isoflop_curves(curves: Sequence[IsoFlopCurve], width: float = PAGE) -> Figure:
    """Loss against unique parameters: colour by budget, line style by r, star at the vertex."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    colours = budget_colours([curve.budget for curve in curves])
    drawn = [part for curve in curves for part in _parabola(curve, colours, styles)]
    panel = Panel(drawn, SIZE, "validation loss (nats)", log="x", x_ticks=count_axis)
    handles = _parabola_handles(styles, colours, curves)
    height = 4.9 if width >= PAGE else 4.4
    return chart([panel], width, height=height, handles=handles, beside=True)


def isoflop_panels(curves: Sequence[IsoFlopCurve], width: float = PAGE) -> Figure:
    """The same curves, one panel per r."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    colours = budget_colours([curve.budget for curve in curves])
    parts = [
        Panel(
            [p for c in curves if c.r == r for p in _parabola(c, colours, styles)],
            SIZE,
            "validation loss (nats)",
            f"r = {r:g}",
            log="x",
            finish=lambda ax: count_axis(ax.xaxis, sparse=True),
        )
        for r in styles.recurrences
    ]
    handles = _parabola_handles(styles, colours, curves)
    height = 2.6 if width >= PAGE else 2.1
    return chart(
        parts, width, columns=2, height=height, handles=handles, beside=True, sharex=True,
        sharey=True,
    )  # fmt: skip


def _parabola(curve: IsoFlopCurve, colours: Mapping, styles: RecurrenceStyle) -> list[Curve]:
    colour, style = {"color": colours[curve.budget]}, styles(curve.r)
    runs = {"marker": style["marker"], "linestyle": "none", "ms": 4.6, "mew": 0.6, "mec": "white"}
    drawn = [Curve(curve.n_params, curve.loss, runs | colour)]
    if not np.isnan(curve.coefficients[0]):
        n = np.geomspace(curve.n_params[0], curve.n_params[-1], 80)
        weight = {"linewidth": 1.3} if curve.refused is None else REFUSED
        drawn.append(
            Curve(n, curve.predict(n), {"linestyle": style["linestyle"]} | colour | weight)
        )
    if curve.refused is None:
        drawn.append(Curve([curve.n_opt], [curve.loss_opt], STAR | colour | {"zorder": 5}))
    return drawn


def _parabola_handles(
    styles: RecurrenceStyle, colours: Mapping, curves: Sequence[IsoFlopCurve]
) -> list[Line2D]:
    gap = Line2D([], [], linestyle="none", label="")
    handles = [
        Line2D([], [], linestyle="none", label="training FLOPs"),
        *(Line2D([], [], color=c, label=scientific(b), lw=2.5) for b, c in colours.items()),
        gap,
        *recurrence_handles(styles, colour=GREY),
        gap,
        Line2D([], [], color=GREY, label="vertex", **STAR),
    ]
    if any(curve.refused for curve in curves):
        handles.append(Line2D([], [], color=GREY, label="no usable vertex", **REFUSED))
    return handles


# --- optima against compute -----------------------------------------------------------------------


def optimum(
    optima: Sequence[Optima], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """N*(C) and D*(C): vertices as points, the fitted law's minimum as lines."""

    def panel(of_law: str, of_vertex: str, label: str, error: Quantity | None) -> Panel:
        drawn = _law_and_vertices(optima, curves, attrgetter(of_law), attrgetter(of_vertex), error)
        return Panel(drawn, COMPUTE, label, log="xy", x_ticks=budget_axis, y_ticks=count_axis)

    # One standard error of the vertex; none is known for three runs a curve.
    error = lambda curve: np.nan_to_num(curve.log_n_opt_se) * curve.n_opt
    parts = [
        panel("n_params", "n_opt", "optimal unique parameters N*", error),
        panel("tokens", "tokens_opt", "optimal training tokens D*", None),
    ]
    height = 3.2 if width >= PAGE else 2.9
    return chart(parts, width, columns=2, height=height, handles=_handles(curves, optima))


def frontier(
    optima: Sequence[Optima], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """The lowest loss that each r reaches with C FLOPs."""
    drawn = _law_and_vertices(optima, curves, lambda o: o.loss, lambda c: c.loss_opt)
    y = "compute-optimal loss L* (nats)"
    panel = Panel(drawn, COMPUTE, y, log="x", x_ticks=budget_axis)
    return chart([panel], width, height=3.5, handles=_handles(curves, optima))


def frontier_gap(
    gaps: Sequence[FrontierGap], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """What looping costs: L*_r(C) − L*_1(C) with its bootstrap band, and between vertices."""
    reference = {c.budget: c.loss_opt for c in curves if c.r == 1 and c.refused is None}
    drawn = _law_and_vertices(
        gaps,
        [c for c in curves if c.r != 1],
        lambda gap: gap.gap,
        lambda c: c.loss_opt - reference.get(c.budget, np.nan),
        styles=RecurrenceStyle(curve.r for curve in curves),
    )
    y = r"$L^*_r(C) - L^*_1(C)$  (nats)"
    panel = Panel(drawn, COMPUTE, y, log="x", rules=[Rule(0, "y")], x_ticks=budget_axis)
    handles = [h for h in _handles(curves, gaps) if h.get_label() != "r = 1"]
    return chart([panel], width, height=3.1, handles=handles)


def tokens_per_parameter(
    optima: Sequence[Optima], curves: Sequence[IsoFlopCurve], width: float = PAGE
) -> Figure:
    """D*/N* against compute, N unique; every run as a faint point."""
    styles = RecurrenceStyle(curve.r for curve in curves)
    small = {"markersize": 3, "markeredgewidth": 0}
    runs = [
        Curve(
            [c.budget] * len(c.loss), c.tokens / c.n_params, styles.points(c.r) | small, faint=0.25
        )
        for c in curves
    ]
    drawn = _law_and_vertices(
        optima, curves, lambda o: o.tokens / o.n_params, lambda c: c.tokens_opt / c.n_opt
    )
    panel = Panel(
        [*runs, *drawn],
        COMPUTE,
        "tokens per unique parameter D*/N*",
        log="xy",
        rules=[Rule(20, "y", TWENTY)],
        x_ticks=budget_axis,
        y_ticks=count_axis,
    )
    handles = [
        *_handles(curves, optima),
        Line2D([], [], color=GREY, marker="o", ms=3, alpha=0.4, ls="none", label="runs"),
        Line2D([], [], label="20 per parameter", **TWENTY),
    ]
    return chart([panel], width, height=3.3, handles=handles)


def _law_and_vertices(
    lines: Sequence[Any],
    curves: Sequence[IsoFlopCurve],
    of_law: Callable[[Any], ArrayLike],
    of_vertex: Quantity,
    error: Quantity | None = None,
    styles: RecurrenceStyle | None = None,
) -> list[Curve]:
    """A line over budgets for each r by the law, with its band, and the vertices as points."""
    styles = styles or RecurrenceStyle(curve.r for curve in curves)
    drawn = []
    for each in lines:
        low, high = getattr(each, "ci95", None) or (None, None)
        style = styles.line(each.r)
        drawn.append(Curve(each.budgets, of_law(each), style, low=low, high=high, opacity=0.13))
    for r in sorted({curve.r for curve in curves}):
        kept = [curve for curve in curves if curve.r == r and curve.refused is None]
        y = np.array([of_vertex(curve) for curve in kept])
        reach = None if error is None else np.array([error(curve) for curve in kept])
        ends = {} if reach is None else {"low": y - reach, "high": y + reach, "bars": True}
        drawn.append(Curve([c.budget for c in kept], y, styles.points(r), **ends))
    return drawn


def _handles(curves: Sequence[IsoFlopCurve], lines: Sequence) -> list[Line2D]:
    """Points and lines are two definitions of the optimum; every figure that shows both says so."""
    handles = recurrence_handles(RecurrenceStyle(curve.r for curve in curves))
    handles.append(Line2D([], [], color=GREY, marker="o", ls="none", label="iso-FLOP vertices"))
    if lines:
        handles.append(Line2D([], [], color=GREY, label="minimum of the law"))
    return handles
