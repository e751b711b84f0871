"""What stopping tokens early saves, with the tests' own cost: in words, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from analysis.estimate import Estimate
from analysis.exits import figures
from analysis.exits.results import CARRIES, UNIFORM, Exits, Verdict, exits, verdict
from analysis.page.section import Folded, PageFigure, Section
from analysis.page.table import Column, Table
from analysis.tables.measured import measured
from analysis.tables.runs import RunTable
from analysis.tables.suites import parts

#: The policies whose carries are drawn beside each other.
COMPARED = ("kl", "probe", "change")


def exits_section(runs: RunTable) -> Section | None:
    """Exits of every run that was measured; None where none was."""
    models = [exits(each) for each in measured(runs, parts.Exits)]
    if not models:
        return None
    return Section(
        "Stopping tokens early",
        [
            *(sentence for model in models for sentence in in_words(model)),
            verdict_table(models),
            quality_table(models),
            *(figure for model in models for figure in exit_figures(model)),
            Folded("What the parts cost", [cost_table(models)]),
            Folded("Every point", [point_table(model) for model in models]),
        ],
        anchor="exits",
        numbers={"runs": [_record(model) for model in models]},
    )


def exit_figures(model: Exits) -> list[PageFigure]:
    """The frontier of a run, and its carries beside each other where there are several."""
    compared = [name for name in COMPARED if name in model.policies]
    drawn = [
        PageFigure(
            f"frontier_{model.run}",
            partial(figures.frontier, model),
            f"Loss above that of all {model.recurrences} loops, for {model.run}; "
            f"{in_full(model.shown_carry)}. Against mean loops, where the oracles are bounds, and "
            "against forward FLOPs with the exit tests included. Lower and further left is better; "
            f"95 % intervals over {model.unit}s, paired with full depth.",
            f"Two line charts of {model.run}: loss above full depth against mean loops per token "
            f"and against forward FLOPs per token, a line for each of {len(model.policies)} "
            f"policies: {', '.join(model.policies)}.",
        )
    ]
    if compared and len(model.carries) > 1:
        drawn.append(
            PageFigure(
                f"carries_{model.run}",
                partial(figures.carries, model, compared),
                "What exited tokens show to others: "
                + "; ".join(f"{name}: {in_full(name)}" for name in model.carries)
                + ".",
                f"Line charts of {model.run}: loss above full depth against mean loops for the "
                f"policies {', '.join(compared)}, a line for each of {', '.join(model.carries)}.",
            )
        )
    return drawn


def in_full(carry: str) -> str:
    """What others see of an exited token, in words where there are any."""
    return CARRIES.get(carry, carry)


def in_words(model: Exits) -> list[str]:
    """What the KL test costs, and how much the probe knows."""
    kl, loop = model.tests.get("kl"), model.costs["recurrence"]
    sentences = []
    if kl is not None:
        sentences.append(
            f"{model.run}: one KL test (coda and head) costs {kl:,.0f} forward FLOPs a token, "
            f"{kl / loop:.2f} times a loop ({loop:,.0f})."
        )
    if model.probe_quality is not None and "probe" in model.policies:
        sentences.append(
            f"{model.run}: the probe ranks pairs of token and loop that will change their argmax "
            f"above those that will not {model.probe_quality:.1%} of the time (50 % is chance)."
        )
    return sentences


def verdict_table(models: Sequence[Exits]) -> Table:
    """How often a policy beats uniform depth, at equal loops and at equal FLOPs."""
    rows = []
    for model in models:
        for policy in model.policies:
            if policy == UNIFORM or policy.startswith("oracle"):
                continue
            row = {"run": model.run, "policy": policy}
            for cost in ("loops", "flops"):
                at = verdict(model, policy, model.shown_carry, cost)
                row[f"{cost}_better"] = f"{at.better} of {at.compared}"
                row[f"{cost}_worse"] = f"{at.worse} of {at.compared}"
            rows.append(row)
    return Table(
        "exits_against_uniform",
        "Against uniform depth: thresholds whose loss is lower or higher beyond the 95 % interval "
        "of the difference, tests of the policy included in FLOPs. Exited tokens: "
        f"{in_full(models[0].shown_carry)}.",
        (
            Column("run", "run"),
            Column("policy", "policy"),
            Column("loops_better", "equal loops: better", str),
            Column("loops_worse", "worse", str),
            Column("flops_better", "equal FLOPs: better", str),
            Column("flops_worse", "worse", str),
        ),
        rows,
    )


def quality_table(models: Sequence[Exits]) -> Table:
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
            {"run": model.run, **vars(each)}
            for model in models
            for each in model.equal_quality
            if each.carry == model.shown_carry
        ],
    )


def cost_table(models: Sequence[Exits]) -> Table:
    """Forward FLOPs of the parts of a model and of the exit tests."""
    rows = []
    for model in models:
        tests = {f"test: {policy}": flops for policy, flops in model.tests.items() if flops}
        for name, flops in {**model.costs, **tests}.items():
            loops = flops / model.costs["recurrence"]
            rows.append({"run": model.run, "part": name, "flops": flops, "loops": loops})
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


def point_table(model: Exits) -> Table:
    """Every point of a run."""
    return Table(
        f"exit_points_{model.run}",
        f"{model.run}: nats, 95 % intervals.",
        (
            Column("policy", "policy"),
            Column("carry", "carry"),
            Column("threshold", "threshold", ".4g"),
            Column("mean_loops", "mean loops", ".2f"),
            Column("loss", "loss", ".4f"),
            Column("against_full_depth", "− full depth", ".4f"),
            Column("agreement", "same argmax", ".3f"),
            Column("flops", "FLOPs", ",.0f"),
            Column("test_share", "tests", ".0%"),
            Column("against_uniform_loops", "− uniform, equal loops", ".4f"),
            Column("against_uniform_flops", "− uniform, equal FLOPs", ".4f"),
        ),
        [vars(point) for point in model.points],
    )


def _record(model: Exits) -> dict[str, Any]:
    """What JSON holds of a run; its points stand in its summary."""
    return {
        "run": model.run,
        "training_mean": model.mean,
        "recurrences": model.recurrences,
        "carry": model.shown_carry,
        "test_over_loop": {
            name: flops / model.costs["recurrence"] for name, flops in model.tests.items()
        },
        "against_uniform": [
            _verdict_record(verdict(model, policy, carry, cost), cost)
            for carry in model.carries
            for policy in model.policies
            for cost in ("loops", "flops")
        ],
        "at_equal_quality": [
            asdict(each)
            | {
                "loops_over_uniform": _or_null(each.loops_over_uniform),
                "flops_over_uniform": _or_null(each.flops_over_uniform),
            }
            for each in model.equal_quality
        ],
        "probe_area_under_roc": model.probe_quality,
    }


def _verdict_record(found: Verdict, cost: str) -> dict[str, Any]:
    best = found.best
    return {
        "policy": found.policy,
        "carry": found.carry,
        "equal": cost,
        "better": found.better,
        "worse": found.worse,
        "compared": found.compared,
        "best": best
        and {
            "threshold": best.threshold,
            "mean_loops": best.mean_loops.value,
            "difference": getattr(best, f"against_uniform_{cost}"),
        },
    }


def _or_null(value: Estimate) -> Estimate | None:
    return None if value.ci95 is None else value
