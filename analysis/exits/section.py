"""The part of a report about exits: what stopping tokens early saves, with the tests' own cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from analysis.exits import figures
from analysis.exits.results import CARRIES, UNIFORM, Exits, exits, verdict
from analysis.page.html import PageFigure, Section, folded, table
from analysis.tables.measured import measured
from analysis.tables.runs import RunTable

#: The policies whose carries are drawn beside each other.
COMPARED = ("kl", "probe", "change")


def exits_section(runs: RunTable) -> Section | None:
    """Exits of every run that was measured; None where none was."""
    models = [exits(each) for each in measured(runs, "exits")]
    if not models:
        return None
    sentences = [sentence for model in models for sentence in in_words(model)]
    html = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    page_figures = []
    for model in models:
        page_figures += exit_figures(model)
    return Section(
        "Stopping tokens early",
        html + _verdict_table(models) + _equal_quality_table(models) + _cost_table(models),
        page_figures,
        folded("Every point", _point_tables(models)),
        anchor="exits",
    )


def exit_figures(model: Exits) -> list[PageFigure]:
    """Both figures of a run."""
    compared = [name for name in COMPARED if name in model.policies]
    drawn = [
        PageFigure(
            f"frontier_{model.run}",
            figures.frontier(model),
            f"Loss above that of all {model.recurrences} loops, for {escape(model.run)}; "
            f"{escape(CARRIES.get(model.shown_carry, model.shown_carry))}. Left against mean "
            "loops, where the oracles are bounds; right against forward FLOPs with the exit tests "
            f"included. Lower and further left is better; 95 % intervals over {model.unit}s, "
            "paired with full depth.",
        )
    ]
    if compared and len(model.carries) > 1:
        drawn.append(
            PageFigure(
                f"carries_{model.run}",
                figures.carries(model, compared),
                "What exited tokens show to others: "
                + "; ".join(f"{name}: {CARRIES.get(name, name)}" for name in model.carries)
                + ".",
            )
        )
    return drawn


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


def _verdict_table(models: Sequence[Exits]) -> str:
    rows = []
    for model in models:
        for policy in model.policies:
            if policy == UNIFORM or policy.startswith("oracle"):
                continue
            row = [model.run, policy]
            for cost in ("loops", "flops"):
                at = verdict(model, policy, model.shown_carry, cost)
                row += [f"{at.better} of {at.compared}", f"{at.worse} of {at.compared}"]
            rows.append(row)
    carry = models[0].shown_carry
    return table(
        ("run", "policy", "equal loops: better", "worse", "equal FLOPs: better", "worse"),
        rows,
        caption="Against uniform depth: thresholds whose loss is lower or higher beyond the 95 % "
        f"interval of the difference, tests of the policy included in FLOPs. Exited tokens: "
        f"{CARRIES.get(carry, carry)}.",
    )


def _equal_quality_table(models: Sequence[Exits]) -> str:
    rows = [
        [
            model.run,
            each.policy,
            _or_dash(each.loops.value, each.loops.text(2)),
            _or_dash(each.loops_over_uniform.value, each.loops_over_uniform.text(2)),
            _or_dash(each.flops_over_uniform.value, each.flops_over_uniform.text(2)),
            f"{each.share_reached:.0%}",
        ]
        for model in models
        for each in model.equal_quality
        if each.carry == model.shown_carry
    ]
    return table(
        ("run", "policy", "mean loops", "loops / uniform", "FLOPs / uniform", "reached"),
        rows,
        caption="At equal quality: what each policy needs for 99 % of what uniform depth brings, "
        "over what uniform depth needs, with 95 % intervals; reached: share of resamples in which "
        "some threshold gets there. Below 1 is a saving.",
    )


def _cost_table(models: Sequence[Exits]) -> str:
    rows = []
    for model in models:
        loop = model.costs["recurrence"]
        for name, flops in model.costs.items():
            rows.append([model.run, name, f"{flops:,.0f}", f"{flops / loop:.3f}"])
        for policy, flops in model.tests.items():
            if flops:
                rows.append([model.run, f"test: {policy}", f"{flops:,.0f}", f"{flops / loop:.3f}"])
    return folded(
        "What the parts cost",
        table(("run", "part", "forward FLOPs per token", "in loops"), rows),
    )


def _point_tables(models: Sequence[Exits]) -> str:
    html = ""
    for model in models:
        rows = [
            [
                point.policy,
                point.carry,
                f"{point.threshold:.4g}",
                point.mean_loops.text(2),
                point.loss.text(4),
                point.against_full_depth.text(4),
                f"{point.agreement.value:.3f}",
                f"{point.flops.value:,.0f}",
                f"{point.test_share:.0%}",
                _or_dash(point.against_uniform_loops.value, point.against_uniform_loops.text(4)),
                _or_dash(point.against_uniform_flops.value, point.against_uniform_flops.text(4)),
            ]
            for point in model.points
        ]
        header = (
            "policy", "carry", "threshold", "mean loops", "loss", "− full depth",
            "same argmax", "FLOPs", "tests", "− uniform, equal loops", "− uniform, equal FLOPs",
        )  # fmt: skip
        html += table(header, rows, caption=f"{escape(model.run)}: nats, 95 % intervals.")
    return html


def _or_dash(value: float, text: str) -> str | None:
    return None if value != value else text
