"""The look shared by every figure, and how figures are written.

Figures are made with matplotlib's object API: no pyplot, no global state, no display. Colours come
from palettes made for colour-blind readers, and nothing is told by colour alone: recurrences also
have a line style and a marker, budgets run from dark to light and keep their order in grey print.
"""

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
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.page.characters import printable
from analysis.page.numbers import compact, scientific
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
WARM = "#d55e00"

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
#: Widths in inches of a figure on a page, and on a phone, where its parts stand below each other.
PAGE, PHONE = 7.2, 3.6
#: Of a legend: the height of a row, and the width of a character (inches).
LEGEND_ROW, CHARACTER = 0.3, 0.073


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


def panels(
    width: float, count: int, columns: int, height: float, narrow: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
    """`count` axes of `height` inches each, in rows of `columns`, or `narrow` on a phone.

    `options` go to `Figure.subplots`, such as sharey=True.
    """
    columns = min(columns if width >= PAGE else narrow, count)
    rows = -(-count // columns)
    figure = new_figure(width, height * rows + LEGEND_ROW)
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes[:count]


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
    """Dark to light with growing budget: viridis where it is readable on white and on black."""
    ordered = sorted(set(budgets))
    viridis = matplotlib.colormaps["viridis"]
    steps = max(len(ordered) - 1, 1)
    return {budget: viridis(0.65 * i / steps) for i, budget in enumerate(ordered)}


def recurrence_handles(styles: RecurrenceStyle, colour: str | None = None) -> list[Line2D]:
    """Legend entries, one per r; in one colour where colour means something else."""
    recolour = {"color": colour} if colour else {}
    return [
        Line2D([], [], label=f"r = {r:g}", **(styles(r) | recolour)) for r in styles.recurrences
    ]


def count_axis(axis: Axis, sparse: bool = False) -> None:
    """Label a logarithmic axis of counts as 10M, 20M, 50M …; call it when everything is drawn."""
    decades = _settle(axis)
    subs: tuple[float, ...] = (1, 2, 5)
    if decades < 1:
        subs = (1, 1.5, 2, 3, 5) if sparse else (1, 1.5, 2, 3, 4, 5, 7)
    elif sparse or decades > 2.5:
        subs = (1, 3) if decades < (2.5 if sparse else 4) else (1,)
    _label_log(axis, subs, compact)


def budget_axis(axis: Axis) -> None:
    """Label a logarithmic axis of FLOPs with 10ⁿ and 3×10ⁿ (powers alone over many decades)."""
    decades = _settle(axis)
    _label_log(axis, (1, 3) if decades < 3.5 else (1,), scientific)


def compact_axis(axis: Axis) -> None:
    """Label a linear axis of counts as 1M, 1.5M …"""
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _position: compact(value)))


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


def legend(figure: Figure, handles: Sequence[Line2D], beside: bool = False) -> None:
    """A legend under the axes, in as few even rows as fit; `beside` them where there is room."""
    width = figure.get_figwidth()
    if beside and width >= PAGE:
        figure.legend(handles=handles, loc="outside right upper")
        return
    if width < PAGE:
        handles = [handle for handle in handles if str(handle.get_label())]  # no gaps
    room = int((width - 0.6) / CHARACTER)  # characters of one label
    longest = 1
    for handle in handles:
        label = str(handle.get_label())
        if len(label) > room:
            handle.set_label(f"{label[: room // 2]}…{label[-(room - room // 2 - 1) :]}")
        longest = max(longest, min(len(label), room))
    per_row = max(1, int(width / (0.5 + longest * 0.9 * CHARACTER)))
    rows = -(-len(handles) // per_row)
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // rows))


def drawable(text: str, family: str = "DejaVu Sans") -> str:
    """The text with a dot for every character that the font lacks."""
    known = _characters(family)
    return "".join(c if ord(c) in known else "·" for c in printable(text))


@functools.cache
def _characters(family: str) -> frozenset[int]:
    return frozenset(get_font(findfont(family)).get_charmap())


def literal(text: str) -> str:
    """A label in which a dollar sign is a dollar sign, not mathematics."""
    return drawable(text).replace("$", r"\$")


def signed_axis(axis: Axis, linear: float, ticks: Sequence[float]) -> None:
    """Differences around zero: linear within ± `linear`, logarithmic beyond, ticks with a sign."""
    set_scale = axis.axes.set_yscale if axis is axis.axes.yaxis else axis.axes.set_xscale
    set_scale("symlog", linthresh=linear, linscale=0.8)
    axis.set_major_locator(FixedLocator([*(-t for t in ticks), 0.0, *ticks]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")


def empty(ax: Axes, text: str) -> None:
    """Say in an axes why it shows nothing."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", color=GREY, wrap=True, transform=ax.transAxes)


def svg(figure: Figure) -> bytes:
    """The figure as SVG, for embedding."""
    return _render(figure, FigureCanvasSVG, "print_svg", metadata={"Date": None})


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `name`.pdf and `name`.png into `folder`."""
    pdf = _render(figure, FigureCanvasPdf, "print_pdf", metadata={"CreationDate": None})
    write_bytes(folder / f"{name}.pdf", pdf)
    write_bytes(folder / f"{name}.png", _render(figure, FigureCanvasAgg, "print_png"))


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
