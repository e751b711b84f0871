"""What stopping tokens early saves, with the tests' own cost: in words, tables and figures."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from analysis.exits import figures
from analysis.exits.results import (
    CARRIES,
    UNIFORM,
    against_uniform,
    carries,
    loops_per_test,
    policies,
    shown_carry,
)
from analysis.page.section import Folded, PageFigure, Section
from analysis.page.table import Column, Table
from analysis.tables.measured import Measured, measured
from analysis.tables.runs import RunTable

#: The policies whose carries are drawn beside each other.
COMPARED = ("kl", "probe", "change")
COSTS = {"loops": "equal loops", "flops": "equal FLOPs"}


def exits_section(table: RunTable) -> Section | None:
    """Exits of every run that was measured; None where none was."""
    runs = measured(table, "exits")
    if not runs:
        return None
    return Section(
        "Stopping tokens early",
        [
            *(sentence for run in runs for sentence in in_words(run)),
            verdict_table(runs),
            quality_table(runs),
            *(figure for run in runs for figure in exit_figures(run)),
            Folded("What the parts cost", [cost_table(runs)]),
            Folded("Every point", [point_table(run) for run in runs]),
        ],
        anchor="exits",
        numbers={"runs": [_record(run) for run in runs]},
    )


def exit_figures(run: Measured) -> list[PageFigure]:
    """The frontier of a run, and its carries beside each other where there are several."""
    names, compared = policies(run), [name for name in COMPARED if name in policies(run)]
    drawn = [
        PageFigure(
            f"frontier_{run.run}",
            partial(figures.frontier, run),
            f"Loss above that of all {run['recurrences']} loops, for {run.run}; "
            f"{in_full(shown_carry(run))}. Against mean loops, where the oracles are bounds, and "
            "against forward FLOPs with the exit tests included. Lower and further left is better; "
            f"95 % intervals over {run['bootstrap.unit']}s, paired with full depth.",
            f"Two line charts of {run.run}: loss above full depth against mean loops per token and "
            f"against forward FLOPs per token, a line for each of {len(names)} policies: "
            f"{', '.join(names)}.",
        )
    ]
    if compared and len(carries(run)) > 1:
        shown = "; ".join(f"{name}: {in_full(name)}" for name in carries(run))
        drawn.append(
            PageFigure(
                f"carries_{run.run}",
                partial(figures.carries, run, compared),
                f"What exited tokens show to others: {shown}.",
                f"Line charts of {run.run}: loss above full depth against mean loops for the "
                f"policies {', '.join(compared)}, a line for each of {', '.join(carries(run))}.",
            )
        )
    return drawn


def in_full(carry: str) -> str:
    """What others see of an exited token, in words where there are any."""
    return CARRIES.get(carry, carry)


def in_words(run: Measured) -> list[str]:
    """What the KL test costs, and how much the probe knows."""
    tests, quality = run["costs.tests"], run["probe.scored_area_under_roc"]
    sentences = []
    if "kl" in tests:
        sentences.append(
            f"{run.run}: one KL test (coda and head) costs {tests['kl']:,.0f} forward FLOPs a "
            f"token, {loops_per_test(run)['kl']:.2f} times a loop ({run['costs.recurrence']:,.0f})."
        )
    if quality is not None and "probe" in run["policies"]:
        sentences.append(
            f"{run.run}: the probe ranks pairs of token and loop that will change their argmax "
            f"above those that will not {quality:.1%} of the time (50 % is chance)."
        )
    return sentences


def verdict_table(runs: Sequence[Measured]) -> Table:
    """How often a policy beats uniform depth, at equal loops and at equal FLOPs."""

    def row(run: Measured, policy: str) -> dict[str, str]:
        cells = {"run": run.run, "policy": policy}
        for cost in COSTS:
            at = against_uniform(run, policy, shown_carry(run), cost)
            for side in ("better", "worse"):
                cells[f"{cost}_{side}"] = f"{at[side]} of {at['compared']}"
        return cells

    return Table(
        "exits_against_uniform",
        "Against uniform depth: thresholds whose loss is lower or higher beyond the 95 % interval "
        "of the difference, tests of the policy included in FLOPs. Exited tokens: "
        f"{in_full(shown_carry(runs[0]))}.",
        (
            Column("run", "run"),
            Column("policy", "policy"),
            *(
                Column(f"{cost}_{side}", f"{title}{side}", str)
                for cost, equal in COSTS.items()
                for side, title in (("better", f"{equal}: "), ("worse", ""))
            ),
        ),
        [
            row(run, policy)
            for run in runs
            for policy in policies(run)
            if policy != UNIFORM and not policy.startswith("oracle")
        ],
    )


def quality_table(runs: Sequence[Measured]) -> Table:
    """What each policy needs for 99 % of what uniform depth brings."""
    return Table(
        "exits_at_equal_quality",
        "At equal quality: what each policy needs for 99 % of what uniform depth brings, over what "
        "uniform depth needs, with 95 % intervals; reached: share of resamples in which some "
        "threshold gets there. Below 1 is a saving.",
        (
            Column("run", "run"),
            Column("policy", "policy"),
            Column("loops", "mean loops", ".2f"),
            Column("loops_over_uniform", "loops / uniform", ".2f"),
            Column("flops_over_uniform", "FLOPs / uniform", ".2f"),
            Column("share_reached", "reached", ".0%"),
        ),
        [
            {"run": run.run, **each}
            for run in runs
            for each in run["at_equal_quality"]
            if each["carry"] == shown_carry(run)
        ],
    )


def cost_table(runs: Sequence[Measured]) -> Table:
    """Forward FLOPs of the parts of a model and of the exit tests."""
    rows = []
    for run in runs:
        parts = {name: run["costs"][name] for name in ("prelude", "recurrence", "readout")}
        tests = {f"test: {policy}": flops for policy, flops in run["costs.tests"].items() if flops}
        for name, flops in {**parts, **tests}.items():
            loops = flops / run["costs.recurrence"]
            rows.append({"run": run.run, "part": name, "flops": flops, "loops": loops})
    return Table(
        "exit_costs",
        "",
        (
            Column("run", "run"),
            Column("part", "part"),
            Column("flops", "forward FLOPs per token", ",.0f"),
            Column("loops", "in loops", ".3f"),
        ),
        rows,
    )


def point_table(run: Measured) -> Table:
    """Every point of a run."""
    share = lambda point: point["test_flops_per_token"] / point["flops_per_token"].value
    return Table(
        f"exit_points_{run.run}",
        f"{run.run}: nats, 95 % intervals.",
        (
            Column("policy", "policy"),
            Column("carry", "carry"),
            Column("threshold", "threshold", ".4g"),
            Column("mean_loops", "mean loops", ".2f"),
            Column("loss", "loss", ".4f"),
            Column("against_full_depth", "− full depth", ".4f"),
            Column("agreement", "same argmax", ".3f"),
            Column("flops_per_token", "FLOPs", ",.0f"),
            Column("test_share", "tests", ".0%"),
            Column("against_uniform_at_equal_loops", "− uniform, equal loops", ".4f"),
            Column("against_uniform_at_equal_flops", "− uniform, equal FLOPs", ".4f"),
        ),
        [{**point, "test_share": share(point)} for point in run["points"]],
    )


def _record(run: Measured) -> dict[str, Any]:
    """What JSON holds of a run; its points stand in its summary."""
    known = ("policy", "carry", "loops", "loops_over_uniform", "flops_over_uniform")
    ratios = ("loops_over_uniform", "flops_over_uniform")
    return {
        "run": run.run,
        "training_mean": run["training.mean"],
        "recurrences": run["recurrences"],
        "carry": shown_carry(run),
        "test_over_loop": loops_per_test(run),
        "against_uniform": [
            against_uniform(run, policy, carry, cost)
            for carry in carries(run)
            for policy in run["policies"]
            for cost in COSTS
        ],
        "at_equal_quality": [
            {key: each[key] for key in (*known, "share_reached")}
            | {key: each[key] if each[key].ci95 else None for key in ratios}
            for each in run["at_equal_quality"]
        ],
        "probe_area_under_roc": run["probe.scored_area_under_roc"],
    }
