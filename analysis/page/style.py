"""The look shared by every figure, and how figures are written.

Figures are made with matplotlib's object API: no pyplot, no global state, no display. Colours come
from palettes made for colour-blind readers, and nothing is told by colour alone: recurrences also
have a line style and a marker, budgets run from dark to light and keep their order in grey print.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.tables.files import write_bytes

# Okabe & Ito, "Color universal design" (2008); its yellow is left out, it vanishes on white paper.
_PALETTE = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
# Their lengths share no factor, so the same three marks come together only after hundreds of r.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_LINES: tuple[Any, ...] = (
    "-",
    (0, (6, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 1.6, 1.2, 1.6)),
    (0, (6, 1.6, 1.2, 1.6, 1.2, 1.6)),
    (0, (3, 3)),
    (0, (10, 2)),
    (0, (2, 1)),
)
GREY = "#6b6b6b"
ACCENT = "#0072B2"
BAND = "#d9e6f2"

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "analysis",  # the same figure twice is the same file
}
PNG_DPI = 200


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Run a function that makes a figure under this module's style."""

    @functools.wraps(draw)
    def wrapped(*args, **kwargs):
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def new_figure(width: float, height: float) -> Figure:
    """An empty figure (inches) whose parts arrange themselves."""
    return Figure(figsize=(width, height), layout="constrained")


class RecurrenceStyle:
    """Colour, marker and line style of each r of a study, the same in every figure."""

    def __init__(self, recurrences: Iterable[float]):
        self.recurrences = sorted(set(recurrences))

    def __call__(self, r: float) -> dict[str, Any]:
        i = self.recurrences.index(r)
        return {
            "color": _PALETTE[i % len(_PALETTE)],
            "marker": _MARKERS[i % len(_MARKERS)],
            "linestyle": _LINES[i % len(_LINES)],
        }

    def line(self, r: float) -> dict[str, Any]:
        style = self(r)
        return {"color": style["color"], "linestyle": style["linestyle"]}

    def points(self, r: float) -> dict[str, Any]:
        style = self(r)
        return {"color": style["color"], "marker": style["marker"], "linestyle": "none"}


def budget_colours(budgets: Sequence[float]) -> dict[float, Any]:
    """Dark to light with growing budget; viridis without its yellow end, unreadable on paper."""
    ordered = sorted(set(budgets))
    viridis = matplotlib.colormaps["viridis"]
    steps = max(len(ordered) - 1, 1)
    return {budget: viridis(0.8 * i / steps) for i, budget in enumerate(ordered)}


def recurrence_handles(styles: RecurrenceStyle, colour: str | None = None) -> list[Line2D]:
    """Legend entries, one per r; in one colour where colour means something else."""
    recolour = {"color": colour} if colour else {}
    return [
        Line2D([], [], label=f"r = {r:g}", **(styles(r) | recolour)) for r in styles.recurrences
    ]


def point_handles(styles: RecurrenceStyle) -> list[Line2D]:
    """Legend entries of a figure that has points only."""
    return [Line2D([], [], label=f"r = {r:g}", **styles.points(r)) for r in styles.recurrences]


def power_of_ten(value: float) -> str:
    """4.64e17 → 4.64×10¹⁷, in mathtext."""
    mantissa, exponent = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = f"10^{{{int(exponent)}}}"
    return f"${power}$" if mantissa == "1" else rf"${mantissa}\times {power}$"


def compact(value: float) -> str:
    """1500 → 1.5k, 3e8 → 300M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def count_axis(axis: Axis, sparse: bool = False) -> None:
    """Label a logarithmic axis of counts as 10M, 20M, 50M …; call it when everything is drawn."""
    decades = _settle(axis)
    subs: tuple[float, ...] = (1, 2, 5)
    if decades < 1:
        subs = (1, 1.5, 2, 3, 4, 5, 7)
    elif sparse or decades > 2.5:
        subs = (1, 3) if decades < 4 else (1,)
    _label_log(axis, subs, compact)


def budget_axis(axis: Axis) -> None:
    """Label a logarithmic axis of FLOPs with 10ⁿ and 3×10ⁿ (powers alone over many decades)."""
    decades = _settle(axis)
    _label_log(axis, (1, 3) if decades < 3.5 else (1,), power_of_ten)


def _settle(axis: Axis) -> float:
    """Fix the limits of a logarithmic axis, around a single value too; its length in decades."""
    low, high = axis.get_view_interval()
    if high < 1.001 * low:  # error bars leave rounding noise around a single value
        low, high = low / 3, high * 3
    set_limits = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
    set_limits(low, high)
    return float(np.log10(high / low))


def _label_log(axis: Axis, subs: tuple[float, ...], label: Callable[[float], str]) -> None:
    numticks = 6 if subs == (1,) else 12  # whole decades may be skipped, parts of them may not
    axis.set_major_locator(LogLocator(subs=subs, numticks=numticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _position: label(value)))


def legend_below(figure: Figure, handles: Sequence[Line2D]) -> None:
    """A legend under the axes, in as few even rows as fit the figure's width."""
    per_row = max(1, int(figure.get_figwidth() / 1.15))
    rows = -(-len(handles) // per_row)
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // rows))


def empty(ax: Axes, text: str) -> None:
    """Say in an axes why it shows nothing."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", color=GREY, wrap=True, transform=ax.transAxes)


def svg(figure: Figure) -> bytes:
    """The figure as SVG, for embedding."""
    return _render(figure, FigureCanvasSVG, "print_svg", metadata={"Date": None})


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `name`.png and `name`.pdf into `folder`."""
    png = _render(figure, FigureCanvasAgg, "print_png")
    pdf = _render(figure, FigureCanvasPdf, "print_pdf", metadata={"CreationDate": None})
    write_bytes(folder / f"{name}.png", png)
    write_bytes(folder / f"{name}.pdf", pdf)


def _render(figure: Figure, canvas: type[FigureCanvasBase], method: str, **options) -> bytes:
    """Straight to the backend: savefig would arrange and draw everything twice for each format."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        if figure.get_layout_engine() is not None:
            FigureCanvasAgg(figure)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        figure.set_dpi(PNG_DPI)
        getattr(canvas(figure), method)(buffer, **options)
    return buffer.getvalue()
