"""Training curves: loss against tokens and against FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

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
    named,
    panels,
    styled,
)
from analysis.training.results import TrainedRun

#: More runs than this are told apart by budget and r, not by name.
MOST_NAMED = 8


@styled
def curves(runs: Sequence[TrainedRun], width: float = PAGE) -> Figure:
    """Loss of the batches, averaged, over training; a dot is the held-out loss at the end."""
    fig, axes = panels(width, 2, 2, 3.0, sharey=True)
    styles, handles = _styles(runs)
    for run, style in zip(runs, styles, strict=True):
        tokens, loss = run.curve()
        flops = run.flops_per_token
        for ax, x in ((axes[0], tokens), (axes[1], None if flops is None else flops * tokens)):
            if x is None:
                continue
            ax.plot(x, loss, **style, linewidth=1.1)
            if run.summary is not None:
                ax.plot(x[-1], run.summary["loss"], "o", color=style["color"], ms=4, mec="white")
    for ax, label, label_axis in (
        (axes[0], "training tokens D", count_axis),
        (axes[1], "training FLOPs C", budget_axis),
    ):
        ax.set_xscale("log")
        ax.set_xlabel(label)
        label_axis(ax.xaxis)
    for ax in axes if width < PAGE else axes[:1]:
        ax.set_ylabel("loss (nats)")
    dot = Line2D([], [], color=GREY, marker="o", ls="none", ms=4, label="held-out loss")
    legend(fig, [*handles, dot])
    return fig


def _styles(runs: Sequence[TrainedRun]) -> tuple[list[dict], list[Line2D]]:
    """A line style for each run, and what the legend says of them."""
    if len(runs) <= MOST_NAMED:
        by_run = RecurrenceStyle(range(len(runs)))
        lines = [by_run.line(i) for i in range(len(runs))]
        handles = named([run.name for run in runs], by_run)
        for handle in handles:
            handle.set_marker("")
        return lines, handles
    budgets = [_of_summary(run, "budget") for run in runs]
    loops = [_of_summary(run, "r") for run in runs]
    colours, by_r = budget_colours(budgets), RecurrenceStyle(loops)
    shown = [Line2D([], [], color=c, lw=2.5, label=scientific(b)) for b, c in colours.items()]
    shown += [
        Line2D([], [], color=GREY, linestyle=by_r(r)["linestyle"], label=f"r = {r:g}")
        for r in by_r.recurrences
    ]
    each = zip(budgets, loops, strict=True)
    return [{"color": colours[b], "linestyle": by_r(r)["linestyle"]} for b, r in each], shown


def _of_summary(run: TrainedRun, key: str) -> float:
    return 0.0 if run.summary is None else float(run.summary[key])
