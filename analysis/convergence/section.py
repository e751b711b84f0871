"""The part of a report about elastic depth: loss at every depth, and where tokens settle."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from analysis.convergence import figures
from analysis.convergence.passage import heat_map, passage
from analysis.convergence.results import (
    Convergence,
    Elasticity,
    SaturationTest,
    convergence,
    elasticity,
    saturation_test,
    usual_epsilon,
)
from analysis.page.html import PageFigure, Section, folded, table
from analysis.tables.measured import measured
from analysis.tables.runs import RunTable

MAX_PASSAGES = 4
UNITS = {
    "document": "documents of the held-out text",
    "window": "windows of the held-out text, since it has few documents",
}


def elastic_depth(runs: RunTable) -> Section | None:
    """Loss against depth of every run that was measured; None where none was."""
    models = [elasticity(each) for each in measured(runs, "depth")]
    if not models:
        return None
    test = saturation_test(models)
    sentences = [*map(verdict, models), *([hypothesis(test)] if test else [])]
    html = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return Section(
        "One model at every depth",
        html + _elasticity_table(models),
        [
            PageFigure(
                "elasticity",
                figures.elasticity(models),
                "Left: loss of each model run with more or fewer recurrences than it was trained "
                "with. Right: the same loss minus that at the training mean, on the same text, "
                f"with its 95 % interval (bootstrap over {UNITS[models[0].unit]}).",
            )
        ],
        anchor="elastic-depth",
    )


def settling(runs: RunTable, epsilon: float | None = None) -> Section | None:
    """Convergence from loop to loop of every run that was measured; None where none was."""
    models = [convergence(each) for each in measured(runs, "convergence")]
    if not models:
        return None
    epsilon = usual_epsilon(models) if epsilon is None else epsilon
    html = "".join(f"<p>{escape(sentence)}</p>" for sentence in decay(models, epsilon))
    return Section(
        "Where each token settles",
        html + _settling_table(models, epsilon),
        convergence_page_figures(models, epsilon),
        folded("By loss, position and frequency", _group_tables(models, epsilon)),
        anchor="settling",
    )


def convergence_page_figures(models: Sequence[Convergence], epsilon: float) -> list[PageFigure]:
    """Every figure about convergence, passages included."""
    unit = UNITS[models[0].unit]
    page_figures = [
        PageFigure(
            "kl_per_loop",
            figures.kl_per_loop(models),
            "How far the output distribution of a token moves with each loop: quantiles over "
            "tokens. A straight line on this scale is a fixed factor per loop.",
        ),
        PageFigure(
            "settling",
            figures.settling(models, epsilon),
            f"The loop from which the divergence stays below {epsilon:g} nats, by the kind of "
            "token that is predicted. Orange: tokens that have not settled in all loops that were "
            "run. The first loop that can be compared is the second.",
        ),
        PageFigure(
            "motion",
            figures.motion(models),
            "What still moves: the most likely token, the state relative to its size, and its "
            f"direction. Means over tokens with 95 % intervals (bootstrap over {unit}).",
        ),
    ]
    for model in models[:MAX_PASSAGES]:
        page_figures.append(
            PageFigure(
                f"passage_{model.run}",
                heat_map(passage(model, epsilon)),
                f"The held-out text as {escape(model.run)} reads it: each token coloured by the "
                "loop at which its prediction settled.",
            )
        )
    return page_figures


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


def _elasticity_table(models: Sequence[Elasticity]) -> str:
    def row(model: Elasticity) -> list[str]:
        depths = [model.depths[0], model.mean / 2, 2 * model.mean, 4 * model.mean]
        at_mean = model.at(model.mean)[0]
        loss = model.loss[list(model.depths).index(at_mean)]
        return [
            model.run,
            f"{model.mean:g}",
            loss.text(3),
            *[f"{difference.text(4)} (r = {depth})" for depth, difference in map(model.at, depths)],
            model.saturation.text(1),
        ]

    header = ("run", "mean", "loss at the mean", "first depth", "mean / 2", "2 × mean", "4 × mean",
              "saturation depth")  # fmt: skip
    return table(
        header,
        [row(model) for model in models],
        caption="Loss in nats at the training mean and differences to it at other depths, each "
        "with its 95 % interval.",
    )


def _settling_table(models: Sequence[Convergence], epsilon: float) -> str:
    rows = []
    for model in models:
        whole = model.at(epsilon)
        for name, part in {"all": whole, **whole.groups["type"]}.items():
            rows.append(
                [
                    model.run,
                    name,
                    f"{part.tokens:,}",
                    _median(part, model.recurrences),
                    part.tail_at_mean.text(3),
                    f"{part.unsettled / part.tokens:.3f}",
                ]
            )
    return table(
        ("run", "tokens", "number", "median loop", "unsettled at the mean", "at the last loop"),
        rows,
        caption=f"Loop from which KL stays below {epsilon:g} nats, by the kind of token that is "
        "predicted, with 95 % intervals.",
    )


def _group_tables(models: Sequence[Convergence], epsilon: float) -> str:
    named = {
        "loss": "loss of the token at the training mean (nats)",
        "position": "position in the window (tokens)",
        "frequency": "occurrences of the predicted token in the training text",
    }
    html = ""
    for grouping, label in named.items():
        rows = [
            [
                model.run,
                name,
                f"{part.tokens:,}",
                _median(part, model.recurrences),
                part.tail_at_mean.text(3),
            ]
            for model in models
            for name, part in model.at(epsilon).groups[grouping].items()
        ]
        header = ("run", label, "tokens", "median loop", "unsettled at the mean")
        html += table(header, rows)
    return html


def _median(part, recurrences: int) -> str:
    """The median loop, or that half of the tokens have not settled."""
    if part.median.value > recurrences:
        return f"> {recurrences}"
    return part.median.text(0)
