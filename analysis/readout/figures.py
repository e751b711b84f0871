"""Figures of the readout study: one function, one figure; a colour and a mark a condition.

Lines are means over seeds (geometric for scales), bands reach from the least seed to the largest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike
from scipy import stats

from analysis.page.chart import DASHED, STAR, Curve, Panel, Rule, chart
from analysis.page.style import GREY, PAGE, RecurrenceStyle, count_axis, signed_axis
from analysis.readout.claims import UNSEEN
from analysis.readout.results import Group
from analysis.tables.measured import Measured

TRAINED_LINE: dict[str, Any] = {"color": "#888888", **DASHED}
CLAMPS = {"rescaled": "norm held at loop 1's", "tangential": "no radial update"}
#: The frontier reaches up to so many times the highest perplexity of a trained depth.
SHOWN_PERPLEXITY = 1.2

Quantity = Callable[[Measured], np.ndarray]


def norm_growth(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """Mean norm of the state after every loop, and how far its tail is from the middle."""

    def panel(of: Quantity, y: str) -> Panel:
        return Panel(
            _over_loops(groups, of, first=0),
            "loop i",
            y,
            log="y",
            rules=_trained(groups),
            x_ticks=_loops,
            y_ticks=_plain_numbers,
        )

    def tail(run: Measured) -> np.ndarray:
        median = _values("norm.median")(run)
        return _values("norm.p99")(run) / np.where(median > 0, median, np.nan)

    parts = [
        panel(_values("norm.mean"), "mean ‖hᵢ‖ over tokens"),
        panel(tail, "99th percentile / median of ‖hᵢ‖"),
    ]
    return chart(parts, width, columns=2, height=3.1)


def radial_fraction(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """How much of the gradient lies along the state: of a loop's own loss, and of the objective."""

    def unseen(ax: Axes) -> None:
        measured = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
        ax.set_ylim(min(1e-9, measured[measured > 0].min() / 2), 2)
        ax.axhspan(1e-12, UNSEEN / 10, color="#eeeeee", zorder=0)
        note = "rounding, RMSNorm's ε"
        place = ax.get_yaxis_transform()
        ax.text(0.02, UNSEEN / 13, note, fontsize=7, color=GREY, va="top", transform=place)
        ax.yaxis.set_major_locator(LogLocator(numticks=12))
        ax.yaxis.set_minor_locator(NullLocator())

    parts = [
        Panel(
            _over_loops(groups, _values(f"radial_fraction.{of}.mean")),
            "loop i",
            "|⟨∇L, h⟩| / ‖∇L‖‖h‖",
            f"of the {title}",
            log="y",
            rules=_trained(groups),
            x_ticks=_loops,
            finish=unseen,
        )
        for of, title in (
            ("immediate", "loss read from the state"),
            ("objective", "training objective"),
        )
    ]
    return chart(parts, width, columns=2, height=3.1, sharey=True)


def frontier(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """Perplexity against measured throughput and against FLOPs, a mark a loop, a star at K."""
    perplexity = [_mean(_rows(each, _values("perplexity"))) for each in groups]
    trained = [each.trained_loops - 1 for each in groups]
    highest = max(loss[k] for loss, k in zip(perplexity, trained, strict=True))

    def panel(path: str, label: str, reverse: bool) -> Panel:
        curves, style = [], _styles(groups)
        for i, each in enumerate(groups):
            x = _mean(_rows(each, lambda run: np.array(run[f"throughput.{path}"])))
            look = {"markersize": 3.2, "linewidth": 1.0, "markevery": 1}
            curves.append(Curve(x, perplexity[i], style(i) | look, each.label))
            k, star = trained[i], STAR | {"color": style(i)["color"]}
            curves.append(Curve([x[k]], [perplexity[i][k]], star))

        def finish(ax: Axes) -> None:
            ax.set_ylim(min(map(min, perplexity)) / 1.03, highest * SHOWN_PERPLEXITY)
            _plain_numbers(ax.yaxis)
            if reverse:
                ax.invert_xaxis()

        return Panel(curves, label, "perplexity", log="xy", x_ticks=count_axis, finish=finish)

    parts = [
        panel("tokens_per_second", "tokens per second (measured)", True),
        panel("flops_per_token", "forward FLOPs per token", False),
    ]
    star = Line2D([], [], **STAR | {"color": GREY, "ms": 9}, label="trained loops")
    return chart(parts, width, columns=2, height=3.3, sharey=True, handles=[star])


def angular_step(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """Angle of an update against 1 / s: of every loop, and of one state at several scales."""

    def panel(part: str, first: int, title: str) -> Panel:
        curves, style = [], _styles(groups)
        for i, each in enumerate(groups):
            for run in each.runs:
                size, angle = (_values(f"{part}.{n}")(run)[first:] for n in ("size", "angle"))
                size = np.where(size > 0, size, np.nan)
                look = {"linewidth": 0.8, "markersize": 3.3}
                curves.append(Curve(1 / size, angle, style(i) | look, each.label))
        return Panel(
            curves, "1 / s", "mean angular step (radians)", title, log="xy", finish=_slope_one
        )

    parts = [
        panel("update", 1, "loops 2 … R"),
        panel("probe", 0, "h of the trained depth, scaled"),
    ]
    line = Line2D([], [], label="∝ 1 / s", **TRAINED_LINE)
    return chart(parts, width, columns=2, height=3.2, sharey=True, handles=[line])


def clamps(groups: Sequence[Group], width: float = PAGE) -> Figure:
    """What it does to the loss to take the scale out of the loop, at every loop."""
    parts = [
        Panel(
            _over_loops(groups, _values(f"clamp.{name}.difference"), mean=np.mean),
            "loop i",
            "loss − loss without the clamp (nats)",
            title,
            rules=[Rule(0, "y"), *_trained(groups)],
            x_ticks=_loops,
        )
        for name, title in CLAMPS.items()
    ]
    largest = max(np.abs(curve.y).max() for part in parts for curve in part.curves)
    fig = chart(parts, width, columns=2, height=3.1, sharey=True)
    for ax in fig.axes:
        signed_axis(ax.yaxis, 0.01, [t for t in (0.01, 0.1, 1.0, 10.0) if t <= 2 * largest])
    return fig


def _styles(groups: Sequence[Group]) -> RecurrenceStyle:
    return RecurrenceStyle(range(len(groups)))


def _values(path: str) -> Quantity:
    """Of the estimates of a run; NaN where there is no number."""
    return lambda run: np.array([each.value for each in run[path]])


def _rows(group: Group, of: Quantity) -> np.ndarray:
    """(seeds, loops)."""
    return np.array([of(run) for run in group.runs])


def _mean(rows: np.ndarray, axis: int = 0) -> np.ndarray:
    """Geometric over seeds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(stats.gmean(rows, axis=axis))


def _over_loops(
    groups: Sequence[Group],
    of: Quantity,
    first: int = 1,
    mean: Callable[..., ArrayLike] = _mean,
) -> list[Curve]:
    style, curves = _styles(groups), []
    for i, each in enumerate(groups):
        rows = _rows(each, of)
        loops = first + np.arange(rows.shape[1])
        look = style(i) | {"markersize": 3.8}
        low, high = rows.min(axis=0), rows.max(axis=0)
        curves.append(Curve(loops, mean(rows, axis=0), look, each.label, low, high))
    return curves


def _trained(groups: Sequence[Group]) -> list[Rule]:
    return [Rule(k, style=TRAINED_LINE) for k in sorted({each.trained_loops for each in groups})]


def _loops(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(integer=True))


def _plain_numbers(axis: Axis) -> None:
    """On a logarithmic axis, dense where it spans little."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    subs = (1, 2, 5) if decades < 3 else (1,)
    dense = decades < 0.35
    axis.set_major_locator(MaxNLocator(6) if dense else LogLocator(subs=subs, numticks=14))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _slope_one(ax: Axes) -> None:
    """A line of slope one through the middle of what is drawn."""
    log = np.log(np.concatenate([np.asarray(line.get_xydata()) for line in ax.lines]))
    if not len(log):
        return
    middle = np.exp(np.median(log, axis=0))
    ends = np.exp([log[:, 0].min(), log[:, 0].max()])
    limits = ax.get_ylim()
    ax.plot(ends, middle[1] * ends / middle[0], zorder=0, **TRAINED_LINE)
    ax.set_ylim(limits)
