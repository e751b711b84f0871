"""Training curves: loss against tokens and against FLOPs."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.page.chart import Curve, Panel, chart
from analysis.page.numbers import scientific
from analysis.page.style import (
    GREY,
    PAGE,
    RecurrenceStyle,
    budget_axis,
    budget_colours,
    count_axis,
)
from analysis.training.results import TrainedRun

#: More runs than this are told apart by budget and r, not by name.
MOST_NAMED = 8
DOT: dict[str, Any] = {"marker": "o", "ms": 4, "mec": "white", "linestyle": "none"}


def curves(runs: Sequence[TrainedRun], width: float = PAGE) -> Figure:
    """Loss of the batches, averaged, over training; a dot is the held-out loss at the end."""
    styles, handles = _styles(runs)
    against_tokens, against_flops = [], []
    for run, style in zip(runs, styles, strict=True):
        tokens, loss = run.curve()
        label, look = run.name if len(runs) <= MOST_NAMED else "", style | {"linewidth": 1.1}
        against_tokens.append(Curve(tokens, loss, look, label))
        if run.summary is None or run.flops_per_token is None:
            continue
        flops, dot = run.flops_per_token * tokens, DOT | {"color": style["color"]}
        against_tokens.append(Curve(tokens[-1:], [run.summary["loss"]], dot))
        against_flops += [
            Curve(flops, loss, look), Curve(flops[-1:], [run.summary["loss"]], dot)
        ]  # fmt: skip
    parts = [
        Panel(drawn, label, "loss (nats)", log="x", x_ticks=ticks)
        for drawn, label, ticks in (
            (against_tokens, "training tokens D", count_axis),
            (against_flops, "training FLOPs C", budget_axis),
        )
    ]
    ended = Line2D([], [], **DOT | {"color": GREY}, label="held-out loss")
    return chart(parts, width, columns=2, height=3.0, sharey=True, handles=[*handles, ended])


def _styles(runs: Sequence[TrainedRun]) -> tuple[list[dict], list[Line2D]]:
    """A line style for each run, and what the legend says of them where they have no names."""
    if len(runs) <= MOST_NAMED:
        by_run = RecurrenceStyle(range(len(runs)))
        return [by_run.line(i) for i in range(len(runs))], []
    of = lambda run, key: float((run.summary or {}).get(key, 0.0))
    cells = [(of(run, "budget"), of(run, "r")) for run in runs]
    colours, by_r = budget_colours([b for b, _ in cells]), RecurrenceStyle(r for _, r in cells)
    shown = [Line2D([], [], color=c, lw=2.5, label=scientific(b)) for b, c in colours.items()]
    shown += [
        Line2D([], [], color=GREY, linestyle=by_r(r)["linestyle"], label=f"r = {r:g}")
        for r in by_r.recurrences
    ]
    return [{"color": colours[b], "linestyle": by_r(r)["linestyle"]} for b, r in cells], shown
