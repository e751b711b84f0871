"""Figures of elastic depth and of convergence: one function, one figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.convergence.results import settled
from analysis.page.chart import DASHED, STAR, Curve, Panel, Rule, chart, ends
from analysis.page.style import (
    ACCENT,
    BAND,
    GREY,
    LEGEND_ROW,
    PAGE,
    WARM,
    RecurrenceStyle,
    legend,
    literal,
    new_figure,
    signed_axis,
    styled,
)
from analysis.tables.measured import Measured

MEAN_LINE: dict[str, Any] = {"color": WARM, **DASHED}
MEAN_OF_TOKENS: dict[str, Any] = {"color": "black", "linestyle": (0, (5, 2)), "linewidth": 1.1}
MAX_PANELS = 6


def at_mean(run: Measured) -> Rule:
    return Rule(run["training.mean"], style=MEAN_LINE, label="training mean")


def elasticity(runs: Sequence[Measured], width: float = PAGE) -> Figure:
    """Loss at every depth, and its difference to the loss at the training mean."""
    style = RecurrenceStyle(range(len(runs)))
    losses, stars, differences = [], [], []
    for i, run in enumerate(runs):
        depths, mean = np.array(run["depths"]), run["training.mean"]
        loss = [each.value for each in run["loss"]]
        losses.append(Curve(depths, loss, style(i), run.run))
        star = {**STAR, "color": style(i)["color"]}
        stars.append(Curve([mean], [np.interp(mean, depths, loss)], star))
        found = ends(run["against_mean.difference"])
        differences.append(Curve(depths / mean, **found, style=style.line(i)))

    def limits(ax: Axes) -> None:
        values = np.concatenate([curve.y for curve in differences])
        ax.set_ylim(min(-0.005, 1.5 * values.min()), max(0.005, 1.5 * values.max()))

    def powers_of_two(axis: Axis) -> None:
        axis.axes.set_xscale("log", base=2)
        axis.set_major_formatter(lambda value, _: f"{value:g}")

    parts = [
        Panel([*losses, *stars], "recurrences", "validation loss (nats)", x_ticks=powers_of_two),
        Panel(
            differences,
            "recurrences / training mean",
            "loss − loss at the training mean (nats)",
            rules=[Rule(0, "y"), Rule(1, style=MEAN_LINE)],
            x_ticks=powers_of_two,
            y_ticks=lambda axis: signed_axis(axis, 0.003, (0.01, 0.1, 1)),
            finish=limits,
        ),
    ]
    mark = Line2D([], [], **{**STAR, "color": GREY, "ms": 9}, label="training mean")
    return chart(parts, width, columns=2, height=3.2, handles=[mark])


def kl_per_loop(runs: Sequence[Measured], width: float = PAGE) -> Figure:
    """KL(p_i ‖ p_{i−1}) over loops: median and quantile bands over tokens, one panel a model."""

    def panel(run: Measured) -> Panel:
        loops, median = run["loops"], [each.value for each in run["kl.median"]]
        q = {float(level): row for level, row in run["kl.quantiles"].items()}
        line = {"color": ACCENT}
        return Panel(
            [
                Curve(loops, median, {"color": BAND}, "", q[0.05], q[0.95], opacity=1.0),
                Curve(loops, median, line, "median", q[0.25], q[0.75], opacity=0.35),
                Curve(loops, [each.value for each in run["kl.mean"]], MEAN_OF_TOKENS, "mean"),
            ],
            "loop i",
            "KL(pᵢ ‖ pᵢ₋₁) (nats)",
            run.run,
            log="y",
            rules=[at_mean(run)],
            x_ticks=whole_numbers,
        )

    bands = [
        Line2D([], [], color=BAND, lw=6, label="5–95 %"),
        Line2D([], [], color=ACCENT, alpha=0.35, lw=6, label="25–75 %"),
    ]
    parts = [panel(run) for run in runs[:MAX_PANELS]]
    return chart(parts, width, columns=3, height=2.7, sharey=True, handles=bands)


def motion(runs: Sequence[Measured], width: float = PAGE) -> Figure:
    """How much still moves: argmax, size of the step, angle of the step."""
    style = RecurrenceStyle(range(len(runs)))
    parts = [
        Panel(
            [
                Curve(run["loops"], **ends(run[path]), style=style(i), label=run.run)
                for i, run in enumerate(runs)
            ],
            "loop i",
            title=title,
            log="y",
            x_ticks=whole_numbers,
        )
        for path, title in (
            ("argmax_changed", "tokens whose argmax changed"),
            ("relative_change.mean", "‖hᵢ − hᵢ₋₁‖ / ‖hᵢ‖"),
            ("angle.mean", "angle of hᵢ to hᵢ₋₁ (radians)"),
        )
    ]
    return chart(parts, width, columns=3, height=2.6)


def whole_numbers(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(integer=True))


@styled
def settling(runs: Sequence[Measured], epsilon: float, width: float = PAGE) -> Figure:
    """Histogram of settling loops by token type: a row a model, a column a type.

    On a narrow page, where the columns would be too thin, all tokens alone.
    """
    runs = runs[:MAX_PANELS]
    by_type = [settled(run, epsilon)["by_type"] for run in runs]
    types = [n for n in by_type[0] if n != "other" and all(n in each for each in by_type)]
    columns = ["all", *types] if width >= PAGE else ["all"]
    fig = new_figure(width, 1.45 * len(runs) + LEGEND_ROW + 0.5)
    axes = fig.subplots(len(runs), len(columns), squeeze=False, sharey="row", sharex="row")
    for row, run, kinds in zip(axes, runs, by_type, strict=True):
        for ax, name in zip(row, columns, strict=True):
            _histogram(ax, run, settled(run, epsilon) if name == "all" else kinds[name])
        row[0].set_ylabel(_two_lines(literal(run.run)), fontsize=8)
    for i, name in enumerate(columns):
        axes[0][i].set_title(_two_lines(name, " ", 10), loc="left", fontsize=8.5)
        axes[-1][i].set_xlabel("loop", fontsize=8)
    legend(
        fig,
        [
            Line2D([], [], color=ACCENT, lw=5, label="share of tokens"),
            Line2D([], [], color=WARM, lw=5, label="not settled"),
            Line2D([], [], color="black", marker="^", ls="none", ms=5, label="median"),
            Line2D([], [], label="training mean", **MEAN_LINE),
        ],
    )
    return fig


def _histogram(ax: Axes, run: Measured, part: dict[str, Any]) -> None:
    loops = run["loops"]
    share = np.array([*part["histogram"], part["unsettled"]]) / part["tokens"]
    colours = [ACCENT] * len(loops) + [WARM]
    ax.bar([*loops, loops[-1] + 1.5], share, width=0.9, color=colours)
    ax.axvline(run["training.mean"], **MEAN_LINE)
    ax.plot(part["median"].value, 0, "^", color="black", ms=5, clip_on=False, zorder=5)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    look: Any = {"ha": "right", "fontsize": 7, "color": GREY, "transform": ax.transAxes}
    ax.text(0.98, 0.9, f"n = {part['tokens']:,}", **look)


def _two_lines(name: str, blank: str = "_", most: int = 16) -> str:
    """A long name in two lines, cut at its last `blank`."""
    return name if len(name) <= most else "\n".join(name.rsplit(blank, 1))
