"""Which law answers what a recurrence is worth, and the answer in words.

The rule is fixed in advance and never looks at φ: both laws predict every (budget, r) cell from the
others. Where the local law's error is below 0.7 of the other's, or a coefficient of the other
stands at the edge of its box, the local law answers; otherwise it stands beside as a check.
"""

from dataclasses import dataclass, replace

import pandas as pd

from analysis.page.numbers import signed
from analysis.scaling.fit import FitResult
from analysis.scaling.local_study import LocalStudy, sizes
from analysis.tables.planned import Planned

#: The local law answers when its error on cells left out is below this share of the other law's.
RATIO = 0.7
#: Models smaller than this are far from those of the published studies.
SMALL = 1e7


@dataclass(frozen=True)
class Answer:
    """φ of the law that answers; ``left_out_rmse`` (nats) by law, None where it has none."""

    law: str
    phi: float
    ci95: tuple[float, float] | None
    left_out_rmse: dict[str, float | None]
    why: str


def choose(
    fit: FitResult,
    ci95: tuple[float, float] | None,
    left_out_rmse: float | None,
    local: LocalStudy | None,
    reason: str | None,
) -> Answer:
    """The answer of a study.

    Args:
        fit, ci95, left_out_rmse: the study's law, with a φ that was fitted.
        local: the local law on the same runs; None with the ``reason`` why there is none.
    """
    name, phi = fit.law.name, fit.params["phi"]
    if local is None:
        why = f"there is no local law beside it ({reason})"
        return Answer(name, phi, ci95, {name: left_out_rmse, "local": None}, why)
    theirs = local.cells.left_out_rmse
    answer = Answer(
        "local", local.phi, local.estimate.ci95, {name: left_out_rmse, "local": theirs}, ""
    )
    if name == "local":
        return replace(answer, why="the local law was asked for")
    edges = [n for n in fit.law.coefficients if fit.law.is_named(n, fit.at_bounds)]
    measured = f"local law {theirs:.4f} nats"
    if left_out_rmse is not None:
        ratio = theirs / left_out_rmse
        measured += f", {name} law {left_out_rmse:.4f}, a ratio of {ratio:.2f}"
        measured += f" ({'below' if ratio < RATIO else 'not below'} {RATIO:g})"
    measured = f"errors on (budget, r) cells left out: {measured}"
    if left_out_rmse is None:
        return replace(answer, why=f"without some cell the {name} law cannot be fitted; {measured}")
    if edges:
        at = f"{' and '.join(edges)} of the {name} law at the edge of the range searched"
        return replace(answer, why=f"{at}; {measured}")
    if ratio < RATIO:
        return replace(answer, why=measured)
    return Answer(name, phi, ci95, answer.left_out_rmse, measured)


def in_words(answer: Answer, runs: pd.DataFrame, planned: Planned | None) -> str:
    """The answer for a reader who is new here: what φ is, what it means, for which models."""
    start = f"From {incomplete(planned) or f'{len(runs)} runs'}: φ = {signed(answer.phi)}"
    if answer.ci95 is None:
        return f"{start}, without an interval: nothing was resampled. {limits(runs)}"
    low, high = answer.ci95
    twice = f"{2**answer.phi:.2f} ({2**low:.2f} to {2**high:.2f})"
    return (
        f"{start}, 95 % interval {signed(low)} to {signed(high)}, by the {answer.law} law: a "
        f"block run twice counts as {twice} blocks of its size. {reading(low, high)} "
        f"{limits(runs)}"
    )


def incomplete(planned: Planned | None) -> str | None:
    """ "22 of 36 runs" of a study that is not finished."""
    if planned is None or planned["finished"] >= planned["runs"]:
        return None
    return f"{planned['finished']} of {planned['runs']} runs"


def reading(low: float, high: float) -> str:
    """The interval in words, against 0 (a repetition adds nothing) and 1 (worth new layers)."""
    if low > 1:
        return "In these runs repeating a block is worth more than as many unshared blocks."
    if high < 0:
        return "In these runs repeating a block costs capacity."
    if low <= 0 and high >= 1:
        return (
            "These runs cannot tell: the interval reaches from no value at all to the full value "
            "of unshared layers."
        )
    if low <= 0:
        return (
            "Repeating a block is worth less than unshared layers; whether it is worth anything, "
            "these runs cannot tell."
        )
    if high >= 1:
        return (
            "Repeating a block adds capacity; whether as much as unshared layers would, these "
            "runs cannot tell."
        )
    return "Repeating a block adds capacity, but less than as many unshared layers would."


def limits(runs: pd.DataFrame) -> str:
    """For which models the answer holds."""
    smallest, largest = sizes(runs)
    tokens = runs["tokens"].max()
    text = (
        f"It holds for these models, {_count(smallest)} to {_count(largest)} parameters trained "
        f"on at most {_count(tokens)} tokens"
    )
    if largest < SMALL:
        text += (
            ", and need not be the 0.46 of the published models, thousands of times larger "
            "(arXiv:2604.21106)"
        )
    return f"{text}."


def _count(value: float) -> str:
    for factor, unit in ((1e9, " billion"), (1e6, " million")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{float(f'{value:.2g}'):,.0f}"
