"""Elastic depth in words, tables and figures: loss at every depth, and where tokens settle."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from analysis.convergence import figures
from analysis.convergence.passage import heat_map, passage
from analysis.convergence.results import (
    UsefulDepthTest,
    decades_per_loop,
    improves_until,
    is_monotone_to_mean,
    is_sampled,
    nearest,
    settled,
    useful_depth_test,
    usual_epsilon,
    worst_beyond,
)
from analysis.errors import InputError
from analysis.page.numbers import listed, shown
from analysis.page.section import Folded, PageFigure, Section
from analysis.page.table import Column, Table
from analysis.tables.measured import TEXT_UNITS, Measured, measured
from analysis.tables.runs import RunTable

MAX_PASSAGES = 4
#: Ways in which tokens are grouped beside their type.
GROUPINGS = {
    "loss": "loss of the token at the training mean (nats)",
    "position": "position in the window (tokens)",
    "frequency": "occurrences of the predicted token in the training text",
}
#: Depths at which the loss is compared with that at the training mean, in means.
PLACES = {
    "first": ("first depth", 0.0),
    "half": ("mean / 2", 0.5),
    "twice": ("2 × mean", 2.0),
    "fourfold": ("4 × mean", 4.0),
}


def elastic_depth(table: RunTable) -> Section | None:
    """Loss against depth of every run that was measured; None where none was."""
    runs = measured(table, "depth")
    if not runs:
        return None
    test, depths = useful_depth_test(runs), elasticity_table(runs)
    figure = PageFigure(
        "elasticity",
        partial(figures.elasticity, runs),
        "Left: loss of each model run with more or fewer recurrences than it was trained with. "
        "Right: the same loss minus that at the training mean, on the same text, with its 95 % "
        f"interval (bootstrap over {TEXT_UNITS[runs[0]['bootstrap.unit']]}).",
        f"Two line charts of {listed([run.run for run in runs])}: validation loss against "
        "recurrences, and its difference to the loss at the training mean.",
    )
    words = [*map(verdict, runs), *([hypothesis(test)] if test else [])]
    answer = test and {"runs": test.runs, "slope": test.slope, "holds": test.holds}
    return Section(
        "One model at every depth",
        [*words, depths, figure],
        anchor="elastic-depth",
        numbers={"depth": depths, "useful_depth_is_the_mean": answer},
    )


def settling(table: RunTable, epsilon: float | None = None, passage: int = 0) -> Section | None:
    """Convergence from loop to loop of every run that was measured; None where none was.

    ``passage`` is the first token of the text that is shown.
    """
    runs = measured(table, "convergence")
    if not runs:
        return None
    epsilon = usual_epsilon(runs) if epsilon is None else epsilon
    groups = [settling_table(runs, epsilon, name) for name in GROUPINGS]
    return Section(
        "Where each token settles",
        [
            *(decay(run, epsilon) for run in runs),
            settling_table(runs, epsilon),
            *page_figures(runs, epsilon),
            *(passage_figure(run, epsilon, passage) for run in runs[:MAX_PASSAGES]),
            Folded("By loss, position and frequency", groups),
        ],
        anchor="settling",
        numbers={"epsilon": epsilon, "convergence": [_record(run, epsilon) for run in runs]},
    )


def page_figures(runs: Sequence[Measured], epsilon: float) -> list[PageFigure]:
    """How fast tokens settle, and what still moves."""
    unit, names = TEXT_UNITS[runs[0]["bootstrap.unit"]], listed([run.run for run in runs])
    return [
        PageFigure(
            "kl_per_loop",
            partial(figures.kl_per_loop, runs),
            "How far the output distribution of a token moves with each loop: quantiles over "
            "tokens. A straight line on this scale is a fixed factor per loop.",
            f"Line charts of {names}: KL divergence between successive loops, falling with the "
            "loop, on a logarithmic axis, with bands of its quantiles over tokens.",
        ),
        PageFigure(
            "settling",
            partial(figures.settling, runs, epsilon),
            f"The loop from which the divergence stays below {epsilon:g} nats, by the kind of "
            "token that is predicted. Orange: tokens that have not settled in all loops that were "
            "run. The first loop that can be compared is the second.",
            f"Histograms of {names}: share of tokens that settle at each loop, by kind of token.",
        ),
        PageFigure(
            "motion",
            partial(figures.motion, runs),
            "What still moves: the most likely token, the state relative to its size, and its "
            f"direction. Means over tokens with 95 % intervals (bootstrap over {unit}).",
            f"Three line charts of {names} against the loop: share of tokens whose most likely "
            "prediction changed, relative change of the state, angle of the state to the one "
            "before.",
        ),
    ]


def passage_figure(run: Measured, epsilon: float, start: int) -> PageFigure | str:
    """A passage of the text as a run reads it, or a line where its tokens cannot be read."""
    try:
        text = passage(run, epsilon, start)
    except InputError as reason:
        return f"{run.run}: no passage is shown: {reason}."
    return PageFigure(
        f"passage_{run.run}",
        partial(heat_map, text),
        f"The held-out text as {run.run} reads it: each token coloured by the loop at which its "
        "prediction settled.",
        f"A passage of {len(text.texts)} tokens coloured by the loop at which each settled in "
        f"{run.run}: loop {text.loops.mean():.1f} in the mean.",
    )


def verdict(run: Measured) -> str:
    """What one model does below, at and beyond its training depth, in numbers."""
    worst, beyond = worst_beyond(run)
    first, below = nearest(run, run["depths"][0])
    last = improves_until(run)
    if last is None:
        improves = "no depth below the mean is measurably worse than the mean"
    elif is_monotone_to_mean(run):
        improves = (
            f"loss falls with depth up to the mean; depth {last} is the last that is measurably "
            "worse than the mean"
        )
    else:
        improves = (
            f"depth {last} is the last below the mean that is measurably worse than the mean, but "
            "loss does not fall at every step"
        )
    low, high = beyond.ci95 or (0.0, 0.0)
    if low > 0:
        after = f"it degrades, at most by {beyond.text(4)} nats at depth {worst}"
    elif high < 0:
        after = f"its loss still falls, least at depth {worst} ({beyond.text(4)} nats)"
    else:
        after = f"it stays flat (at most {beyond.text(4)} nats, at depth {worst})"
    return (
        f"{run.run}, depth {'drawn around' if is_sampled(run) else 'fixed at'} "
        f"{run['training.mean']:g}: {improves} (at depth {first} by {below.text(3)} nats); beyond "
        f"the mean {after}."
    )


def hypothesis(test: UsefulDepthTest) -> str:
    """Whether the useful depth is the training mean, as far as these models can say."""
    pairs = zip(test.runs, test.ratios, strict=True)
    ratios = ", ".join(f"{ratio.text(2)} ({run})" for run, ratio in pairs)
    text = (
        "Is the useful depth, the first within 0.005 nats of the best, the training mean? Useful "
        f"depth over training mean: {ratios}."
    )
    if test.slope is not None:
        text += f" Slope of its logarithm on that of the mean: {test.slope.text(2)}."
    agree = "agree with" if test.holds else "do not agree with"
    return f"{text} These models {agree} a ratio and a slope of 1."


def decay(run: Measured, epsilon: float) -> str:
    """How fast divergence falls and how many tokens are left at the training mean."""
    rate, median = decades_per_loop(run), run["kl.median"]
    fall = "has no rate" if rate is None else f"falls by {rate:.2f} orders of magnitude a loop"
    return (
        f"{run.run}: the median KL {fall}, from {median[0].value:.2g} nats at loop 2 to "
        f"{median[-1].value:.2g} at loop {run['recurrences']}; "
        f"{settled(run, epsilon)['tail_at_mean'].text(3)} of the tokens have not settled below "
        f"{epsilon:g} nats at the training mean ({run['mean_depth']})."
    )


def elasticity_table(runs: Sequence[Measured]) -> Table:
    """Loss at the training mean and its difference to it at other depths."""

    def at_depth(at: dict[str, Any]) -> str:
        return f"{shown(at['difference'], '.4f')} (r = {at['depth']})"

    def record(run: Measured) -> dict[str, Any]:
        mean = run["training.mean"]
        at = lambda depth: dict(zip(("depth", "difference"), nearest(run, depth), strict=True))
        return {
            "run": run.run,
            "sampled": is_sampled(run),
            "training_mean": mean,
            "measurably_worse_than_mean_until": improves_until(run),
            "monotone_to_mean": is_monotone_to_mean(run),
            "useful_depth": run["useful.depth"],
            "useful_over_mean": run["useful.over_training_mean"],
            "loss_at_mean": run["loss"][run["depths"].index(nearest(run, mean)[0])],
            "deepest": at(run["depths"][-1]),
            **{key: at(factor * mean) for key, (_, factor) in PLACES.items()},
        }

    return Table(
        "depth",
        "Loss in nats at the training mean and differences to it at other depths, each with its "
        "95 % interval.",
        (
            Column("run", "run"),
            Column("training_mean", "mean", "g"),
            Column("loss_at_mean", "loss at the mean", ".3f"),
            *(Column(key, title, at_depth) for key, (title, _) in PLACES.items()),
            Column("useful_depth", "useful depth", ".1f"),
        ),
        [record(run) for run in runs],
    )


def settling_table(runs: Sequence[Measured], epsilon: float, grouping: str = "type") -> Table:
    """Settling by kind of token, or by another grouping."""
    by_type = grouping == "type"
    rows = []
    for run in runs:
        whole = settled(run, epsilon)
        parts = {"all": whole} if by_type else {}
        for name, part in {**parts, **whole[f"by_{grouping}"]}.items():
            median = part["median"] if part["median"].value <= run["recurrences"] else None
            unsettled = part["unsettled"] / part["tokens"]
            settles = {**part, "median": median, "unsettled": unsettled}
            rows.append({"run": run.run, "group": name, **settles})
    return Table(
        "settling" if by_type else f"settling_by_{grouping}",
        f"Loop from which KL stays below {epsilon:g} nats, by the kind of token that is predicted, "
        "with 95 % intervals. No median: most of the tokens never settle."
        if by_type
        else "",
        (
            Column("run", "run"),
            Column("group", GROUPINGS.get(grouping, "tokens")),
            Column("tokens", "number" if by_type else "tokens", ","),
            Column("median", "median loop", ".0f"),
            Column("tail_at_mean", "unsettled at the mean", ".3f"),
            *([Column("unsettled", "at the last loop", ".3f")] if by_type else []),
        ),
        rows,
    )


def _record(run: Measured, epsilon: float) -> dict[str, Any]:
    """What JSON holds of a run; the measurements themselves stand in its summary."""
    whole, kept = settled(run, epsilon), ("tokens", "median", "tail_at_mean")
    return {
        "run": run.run,
        "training_mean": run["training.mean"],
        "recurrences": run["recurrences"],
        "decades_per_loop": decades_per_loop(run),
        "median": whole["median"],
        "tail_at_mean": whole["tail_at_mean"],
        "by_type": {n: {key: p[key] for key in kept} for n, p in whole["by_type"].items()},
    }
