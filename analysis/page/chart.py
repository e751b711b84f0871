"""A line chart declared as data: panels of curves with bands or error bars, and one legend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from analysis.page.style import GREY, PAGE, STYLE, empty, legend, literal, panels

DASHED: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (2, 2))}
STAR: dict[str, Any] = {"marker": "*", "ms": 11, "mec": "white", "mew": 0.7, "linestyle": "none"}
#: About so many marks stand on a line of many points.
MARKS = 8


@dataclass(frozen=True)
class Curve:
    """Points (x, y) in matplotlib's ``style``; what is not finite is left out.

    Attributes:
        low, high: ends of a band about the curve, of this opacity, or of error bars at its points.
        faint: opacity of the curve itself.
        label: in the legend, where equal ones are one entry.
    """

    x: ArrayLike
    y: ArrayLike
    style: Mapping[str, Any]
    label: str = ""
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    bars: bool = False
    opacity: float = 0.16
    faint: float = 1.0


@dataclass(frozen=True)
class Rule:
    """A straight line across a panel, at this value of x (or y)."""

    at: float
    axis: Literal["x", "y"] = "x"
    style: Mapping[str, Any] = field(default_factory=lambda: {"color": GREY, "linewidth": 0.8})
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """Curves on common axes.

    Attributes:
        x, y: labels of the axes.  log: which of them are logarithmic.
        x_ticks, y_ticks, finish: what settles an axis, or both, when everything is drawn.
    """

    curves: Sequence[Curve]
    x: str
    y: str = ""
    title: str = ""
    log: Literal["", "x", "y", "xy"] = ""
    rules: Sequence[Rule] = ()
    x_ticks: Callable[[Axis], None] | None = None
    y_ticks: Callable[[Axis], None] | None = None
    finish: Callable[[Axes], None] | None = None


def chart(
    parts: Sequence[Panel],
    width: float,
    *,
    height: float,
    columns: int = 1,
    handles: Sequence[Line2D] = (),
    beside: bool = False,
    sharex: bool = False,
    sharey: bool = False,
    title: str = "",
) -> Figure:
    """Panels of ``height`` inches in rows of ``columns``, below each other on a phone.

    ``handles`` come after the labelled curves in the legend, which stands under the panels, or
    ``beside`` them.
    """
    with matplotlib.rc_context(STYLE):
        options = {"sharex": sharex, "sharey": sharey}
        figure, axes = panels(width, len(parts), columns, height, **options)
        entries: dict[str, Line2D] = {}
        across = columns if width >= PAGE else 1
        for i, (ax, part) in enumerate(zip(axes, parts, strict=True)):
            entries |= _draw(ax, part)
            if i % across == 0 or not sharey:
                ax.set_ylabel(part.y)
            if i + across >= len(parts) or not sharex:
                ax.set_xlabel(part.x)
        if title:
            look = {"x": 0.01, "ha": "left", "fontsize": 9.5, "fontweight": "bold"}
            figure.suptitle(literal(title), **look)
        if entries or handles:
            legend(figure, [*entries.values(), *handles], beside)
    return figure


def ends(estimates: Sequence[Any]) -> dict[str, Any]:
    """``y``, ``low`` and ``high`` of a curve through estimates, with or without intervals."""
    pairs = [each.ci95 or (each.value, each.value) for each in estimates]
    low, high = zip(*pairs, strict=True)
    return {"y": [each.value for each in estimates], "low": low, "high": high}


def _draw(ax: Axes, part: Panel) -> dict[str, Line2D]:
    """Draw a panel; its legend entries by label."""
    ax.set_xscale("log" if "x" in part.log else "linear")
    ax.set_yscale("log" if "y" in part.log else "linear")
    entries = {}
    ax.set_autoscale_on(False)  # to all curves together, not to each as it comes
    for curve in part.curves:
        _curve(ax, curve)
        if curve.label:
            entries[curve.label] = Line2D([], [], label=literal(curve.label), **curve.style)
    ax.autoscale()
    for rule in part.rules:
        (ax.axvline if rule.axis == "x" else ax.axhline)(rule.at, **rule.style)
        if rule.label:
            entries[rule.label] = Line2D([], [], label=rule.label, **rule.style)
    if part.title:
        ax.set_title(literal(part.title), loc="left", fontweight="bold")
    if not part.curves:
        empty(ax, "nothing was measured")
        return entries
    if part.x_ticks:
        part.x_ticks(ax.xaxis)
    if part.y_ticks:
        part.y_ticks(ax.yaxis)
    if part.finish:
        part.finish(ax)
    return entries


def _curve(ax: Axes, curve: Curve) -> None:
    x, y = np.asarray(curve.x, np.float64), np.asarray(curve.y, np.float64)
    shown = np.isfinite(y) & np.isfinite(x)
    if ax.get_yscale() == "log":
        shown &= y > 0
    style = {"alpha": curve.faint, **curve.style}
    if "marker" in style and style.get("linestyle") != "none" and not curve.bars:
        style = {"markevery": max(1, int(shown.sum()) // MARKS), **style}
    if curve.low is None or curve.high is None:
        ax.plot(x[shown], y[shown], **style)
        return
    low, high = np.asarray(curve.low, np.float64), np.asarray(curve.high, np.float64)
    if curve.bars:
        reach = np.maximum([y - low, high - y], 0.0)[:, shown]
        ax.errorbar(x[shown], y[shown], reach, elinewidth=0.7, **style)
        return
    band = {"color": style["color"], "alpha": curve.opacity, "linewidth": 0}
    ax.fill_between(x, low, high, where=shown, **band)
    ax.plot(x[shown], y[shown], **style)
