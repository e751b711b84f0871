"""Elastic depth in words, tables and figures: loss at every depth, and where tokens settle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from analysis.convergence import figures
from analysis.convergence.passage import heat_map, passage
from analysis.convergence.results import (
    Convergence,
    Elasticity,
    SaturationTest,
    Settling,
    convergence,
    elasticity,
    saturation_test,
    usual_epsilon,
)
from analysis.errors import InputError
from analysis.page.numbers import listed, shown
from analysis.page.section import Folded, PageFigure, Section
from analysis.page.table import Column, Table
from analysis.tables.measured import measured
from analysis.tables.runs import RunTable
from analysis.tables.suites import parts

MAX_PASSAGES = 4
UNITS = {
    "document": "documents of the held-out text",
    "window": "windows of the held-out text, since it has few documents",
}
#: Ways in which tokens are grouped beside their type.
GROUPINGS = {
    "loss": "loss of the token at the training mean (nats)",
    "position": "position in the window (tokens)",
    "frequency": "occurrences of the predicted token in the training text",
}


def elastic_depth(runs: RunTable) -> Section | None:
    """Loss against depth of every run that was measured; None where none was."""
    models = [elasticity(each) for each in measured(runs, parts.Depth)]
    if not models:
        return None
    test = saturation_test(models)
    table = elasticity_table(models)
    figure = PageFigure(
        "elasticity",
        partial(figures.elasticity, models),
        "Left: loss of each model run with more or fewer recurrences than it was trained with. "
        "Right: the same loss minus that at the training mean, on the same text, with its 95 % "
        f"interval (bootstrap over {UNITS[models[0].unit]}).",
        f"Two line charts of {listed([model.run for model in models])}: validation loss against "
        "recurrences, and its difference to the loss at the training mean.",
    )
    return Section(
        "One model at every depth",
        [*map(verdict, models), *([hypothesis(test)] if test else []), table, figure],
        anchor="elastic-depth",
        numbers={
            "depth": table,
            "saturation_hypothesis": test
            and {"runs": test.runs, "slope": test.slope, "holds": test.holds},
        },
    )


def settling(runs: RunTable, epsilon: float | None = None, first_token: int = 0) -> Section | None:
    """Convergence from loop to loop of every run that was measured; None where none was."""
    models = [convergence(each) for each in measured(runs, parts.Convergence)]
    if not models:
        return None
    epsilon = usual_epsilon(models) if epsilon is None else epsilon
    groups = [group_table(models, epsilon, name) for name in GROUPINGS]
    return Section(
        "Where each token settles",
        [
            *decay(models, epsilon),
            settling_table(models, epsilon),
            *page_figures(models, epsilon, first_token),
            Folded("By loss, position and frequency", groups),
        ],
        anchor="settling",
        numbers={"epsilon": epsilon, "convergence": [_record(each, epsilon) for each in models]},
    )


def page_figures(
    models: Sequence[Convergence], epsilon: float, start: int
) -> list[PageFigure | str]:
    """Every figure about convergence, passages included, and a line where one cannot be read."""
    unit, runs = UNITS[models[0].unit], listed([model.run for model in models])
    drawn: list[PageFigure | str] = [
        PageFigure(
            "kl_per_loop",
            partial(figures.kl_per_loop, models),
            "How far the output distribution of a token moves with each loop: quantiles over "
            "tokens. A straight line on this scale is a fixed factor per loop.",
            f"Line charts of {runs}: KL divergence between successive loops, falling with the "
            "loop, on a logarithmic axis, with bands of its quantiles over tokens.",
        ),
        PageFigure(
            "settling",
            partial(figures.settling, models, epsilon),
            f"The loop from which the divergence stays below {epsilon:g} nats, by the kind of "
            "token that is predicted. Orange: tokens that have not settled in all loops that were "
            "run. The first loop that can be compared is the second.",
            f"Histograms of {runs}: share of tokens that settle at each loop, by kind of token.",
        ),
        PageFigure(
            "motion",
            partial(figures.motion, models),
            "What still moves: the most likely token, the state relative to its size, and its "
            f"direction. Means over tokens with 95 % intervals (bootstrap over {unit}).",
            f"Three line charts of {runs} against the loop: share of tokens whose most likely "
            "prediction changed, relative change of the state, angle of the state to the one "
            "before.",
        ),
    ]
    for model in models[:MAX_PASSAGES]:
        try:
            text = passage(model, epsilon, start)
        except InputError as reason:
            drawn.append(f"{model.run}: no passage is shown: {reason}.")
            continue
        mean = text.loops.mean()
        drawn.append(
            PageFigure(
                f"passage_{model.run}",
                partial(heat_map, text),
                f"The held-out text as {model.run} reads it: each token coloured by the loop at "
                "which its prediction settled.",
                f"A passage of {len(text.texts)} tokens coloured by the loop at which each "
                f"settled in {model.run}: loop {mean:.1f} in the mean.",
            )
        )
    return drawn


def verdict(model: Elasticity) -> str:
    """What one model does below, at and beyond its training depth, in numbers."""
    how = "drawn around" if model.sampled else "fixed at"
    worst, beyond = model.worst_beyond()
    first, below = model.at(float(model.depths[0]))
    last = model.improves_until
    improves = (
        f"loss falls with depth up to the mean; depth {last} is the last that is measurably worse "
        "than the mean"
        if last is not None and model.is_monotone_to_mean
        else f"depth {last} is the last below the mean that is measurably worse than the mean, "
        "but loss does not fall at every step"
        if last is not None
        else "no depth below the mean is measurably worse than the mean"
    )
    ci = beyond.ci95
    if ci is not None and ci[0] > 0:
        after = f"beyond the mean it degrades, at most by {beyond.text(4)} nats at depth {worst}"
    elif ci is not None and ci[1] < 0:
        after = f"beyond the mean it still gains, at least {beyond.text(4)} nats (depth {worst})"
    else:
        after = f"beyond the mean it stays flat (at most {beyond.text(4)} nats, at depth {worst})"
    return (
        f"{model.run}, depth {how} {model.mean:g}: {improves} (at depth {first} by {below.text(3)} "
        f"nats); {after}."
    )


def hypothesis(test: SaturationTest) -> str:
    """Whether the useful depth is the training mean, as far as these models can say."""
    ratios = ", ".join(
        f"{ratio.text(2)} ({run})" for run, ratio in zip(test.runs, test.ratios, strict=True)
    )
    text = (
        "The saturation hypothesis says that the useful depth is the training mean. Depth that "
        f"brings 99 % of what depth brings, over the training mean: {ratios}."
    )
    if test.slope is not None:
        text += f" Slope of its logarithm on that of the mean: {test.slope.text(2)}."
    agree = "agree with" if test.holds else "do not agree with"
    return f"{text} These models {agree} a ratio and a slope of 1."


def decay(models: Sequence[Convergence], epsilon: float) -> list[str]:
    """How fast divergence falls and how many tokens are left at the training mean."""
    sentences = []
    for model in models:
        rate = model.decades_per_loop
        first, last = model.kl_median[0].value, model.kl_median[-1].value
        fall = "has no rate" if rate is None else f"falls by {rate:.2f} orders of magnitude a loop"
        tail = model.at(epsilon).tail_at_mean
        sentences.append(
            f"{model.run}: the median KL {fall}, from {first:.2g} nats at loop 2 to {last:.2g} at "
            f"loop {model.recurrences}; {tail.text(3)} of the tokens have not settled below "
            f"{epsilon:g} nats at the training mean ({model.mean_depth})."
        )
    return sentences


def elasticity_table(models: Sequence[Elasticity]) -> Table:
    """Loss at the training mean and its difference to it at four other depths."""
    places = (
        ("first", "first depth", 0.0),
        ("half", "mean / 2", 0.5),
        ("twice", "2 × mean", 2.0),
        ("fourfold", "4 × mean", 4.0),
    )

    def at_depth(at: dict[str, Any]) -> str:
        return f"{shown(at['difference'], '.4f')} (r = {at['depth']})"

    def record(model: Elasticity) -> dict[str, Any]:
        return {
            "run": model.run,
            "sampled": model.sampled,
            "training_mean": model.mean,
            "measurably_worse_than_mean_until": model.improves_until,
            "monotone_to_mean": model.is_monotone_to_mean,
            "saturation_depth": model.saturation,
            "saturation_over_mean": model.ratio,
            "loss_at_mean": model.loss[list(model.depths).index(model.at(model.mean)[0])],
            "deepest": _at(model, float(model.depths[-1])),
            **{key: _at(model, factor * model.mean) for key, _, factor in places},
        }

    return Table(
        "depth",
        "Loss in nats at the training mean and differences to it at other depths, each with its "
        "95 % interval.",
        (
            Column("run", "run"),
            Column("training_mean", "mean", "g"),
            Column("loss_at_mean", "loss at the mean", ".3f"),
            *(Column(key, title, at_depth) for key, title, _ in places),
            Column("saturation_depth", "saturation depth", ".1f"),
        ),
        [record(model) for model in models],
    )


def _at(model: Elasticity, depth: float) -> dict[str, Any]:
    nearest, difference = model.at(depth)
    return {"depth": nearest, "difference": difference}


def settling_table(models: Sequence[Convergence], epsilon: float) -> Table:
    """Settling by kind of token."""
    rows = [
        _group(model, name, part)
        for model in models
        for name, part in {
            "all": model.at(epsilon),
            **model.at(epsilon).groups["type"],
        }.items()
    ]
    return Table(
        "settling",
        f"Loop from which KL stays below {epsilon:g} nats, by the kind of token that is predicted, "
        "with 95 % intervals. No median: most of the tokens never settle.",
        (*_columns("tokens", "number"), Column("unsettled", "at the last loop", ".3f")),
        rows,
    )


def group_table(models: Sequence[Convergence], epsilon: float, grouping: str) -> Table:
    """Settling by another grouping of the tokens."""
    rows = [
        _group(model, name, part)
        for model in models
        for name, part in model.at(epsilon).groups[grouping].items()
    ]
    return Table(f"settling_by_{grouping}", "", _columns(GROUPINGS[grouping], "tokens"), rows)


def _columns(group: str, number: str) -> tuple[Column, ...]:
    return (
        Column("run", "run"),
        Column("group", group),
        Column("tokens", number, ","),
        Column("median", "median loop", ".0f"),
        Column("tail_at_mean", "unsettled at the mean", ".3f"),
    )


def _group(model: Convergence, name: str, part: Settling) -> dict[str, Any]:
    return {
        "run": model.run,
        "group": name,
        "tokens": part.tokens,
        "median": part.median if part.median.value <= model.recurrences else None,
        "tail_at_mean": part.tail_at_mean,
        "unsettled": part.unsettled / part.tokens,
    }


def _record(model: Convergence, epsilon: float) -> dict[str, Any]:
    """What JSON holds of a run; the measurements themselves stand in its summary."""
    whole = model.at(epsilon)
    return {
        "run": model.run,
        "training_mean": model.mean,
        "recurrences": model.recurrences,
        "decades_per_loop": model.decades_per_loop,
        "median": whole.median,
        "tail_at_mean": whole.tail_at_mean,
        "by_type": {
            name: {"tokens": part.tokens, "median": part.median, "tail_at_mean": part.tail_at_mean}
            for name, part in whole.groups["type"].items()
        },
    }
