"""Figures of exit policies: quality against loops and against compute."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.exits import results
from analysis.page.chart import DASHED, Curve, Panel, Rule, chart, ends
from analysis.page.style import PAGE, WARM, RecurrenceStyle, compact_axis, signed_axis
from analysis.tables.measured import Measured


def frontier(run: Measured, width: float = PAGE) -> Figure:
    """Loss against mean loops and against FLOPs per token, a line for each policy.

    The loss is that above the full-depth loss on the same tokens, on a scale that is linear near
    zero, since differences below a thousandth of a nat stand beside those of a tenth.
    """
    carry = results.shown_carry(run)
    lines = {name: results.frontier(run, name, carry) for name in results.policies(run)}
    lines = {name: points for name, points in lines.items() if points}
    bounds = [name for name in lines if name.startswith("oracle")]
    realised = {name: points for name, points in lines.items() if name not in bounds}
    values = [point["against_full_depth"].value for point in run["points"]]
    style = RecurrenceStyle(range(len(lines)))

    def curves(shown: dict[str, list[results.Point]], cost: str) -> list[Curve]:
        return [
            _curve(points, cost, style(list(lines).index(name)), name)
            for name, points in shown.items()
        ]

    def limits(ax: Axes) -> None:
        signed_axis(ax.yaxis, 0.002, (0.001, 0.01, 0.1, 1))
        ax.set_ylim(min(-0.002, 1.3 * min(values)), max(0.005, 1.3 * max(values)))

    mean = Rule(run["training.mean"], style={"color": WARM, **DASHED}, label="training mean")
    zero, y = Rule(0, "y"), f"loss − loss at {run['recurrences']} loops (nats)"
    flops = "forward FLOPs per token, tests included"
    parts = [
        Panel(
            curves(lines, "mean_loops"), "mean loops per token", y, rules=[zero, mean],
            finish=limits,
        ),
        Panel(
            curves(realised, "flops_per_token"), flops, y, rules=[zero], x_ticks=compact_axis,
            finish=limits,
        ),
    ]  # fmt: skip
    return chart(parts, width, columns=2, height=3.4, sharey=True, title=run.run)


def carries(run: Measured, policies: Sequence[str], width: float = PAGE) -> Figure:
    """What it changes what exited tokens show to others, a panel a policy."""
    shown = results.carries(run)
    style = RecurrenceStyle(range(len(shown)))
    parts = [
        Panel(
            [
                _curve(results.frontier(run, policy, carry), "mean_loops", style(i), carry)
                for i, carry in enumerate(shown)
            ],
            "mean loops per token",
            "loss − full-depth loss (nats)",
            policy,
            rules=[Rule(0, "y")],
            y_ticks=lambda axis: signed_axis(axis, 0.002, (0.001, 0.01, 0.1)),
        )
        for policy in policies
    ]
    return chart(parts, width, columns=3, height=2.5, sharey=True)


def _curve(points: Sequence[results.Point], cost: str, style: dict[str, Any], name: str) -> Curve:
    look = {"linewidth": 2.0 if name == results.UNIFORM else 1.1, "markersize": 3.6}
    faint = 0.55 if name.startswith("oracle") else 1.0
    x = [point[cost].value for point in points]
    losses = ends([point["against_full_depth"] for point in points])
    return Curve(x, **losses, style=style | look, label=name, bars=True, faint=faint)
