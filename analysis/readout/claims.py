"""What arXiv:2606.24898 says of its models, and whether runs of another scale agree.

Every claim is a range for a number that the runs have too. It holds where the whole 95 % interval
lies within, does not hold where the whole interval lies outside, and is undecided between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.readout.results import Group, OverSeeds, ratio
from analysis.tables.estimate import Estimate
from analysis.tables.measured import Measured

HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "undecided", "not measured"

#: The published numbers, 44M and 129M parameters.
PUBLISHED_DRIFT = (39_207.0, 56_051.0)  # final norm, loss at every loop behind RMSNorm
PUBLISHED_CONTROLLED = (17.0, 83.0)  # final norms, raw or penalised
PUBLISHED_RADIAL = (1e-9, 1e-2)  # radial fraction of the gradient, RMSNorm and raw

TENS_OF_THOUSANDS = 1e4
HUNDRED = 100.0
UNSEEN = 1e-6  # what float32 and RMSNorm's epsilon, ε / (mean h² + ε), may leave of a zero
VISIBLE = 1e-3
NEARLY = 0.05  # of perplexity, for "hardly changes"
NEAR_ONE = 0.1  # for exponents and ratios that the lemmas say are 1


@dataclass(frozen=True)
class Claim:
    """A published statement beside the same number here.

    Attributes:
        text: the statement.  published: its numbers there.
        here: the number here, with its interval over seeds.  rule: when it holds.
        verdict: one of HOLDS, FAILS, OPEN, MISSING.
    """

    text: str
    published: str
    quantity: str
    here: OverSeeds | None
    rule: str
    verdict: str


def claims(groups: Sequence[Group]) -> list[Claim]:
    """Every claim, on groups of one shape."""
    drift = pick(groups)
    raw = pick(groups, readout_norm="none")
    penalised = pick(groups, penalised=True)
    between = pick(groups, state_norm="between") or pick(groups, state_norm="every")
    drift_text = " / ".join(f"{x:,.0f}" for x in PUBLISHED_DRIFT)
    tens_text = f"{PUBLISHED_CONTROLLED[0]:g} to {PUBLISHED_CONTROLLED[1]:g}"
    least = PUBLISHED_DRIFT[0] / PUBLISHED_CONTROLLED[1]
    found = [
        _claim(
            "Loss at every loop behind RMSNorm drives the norm into the tens of thousands",
            drift_text, "final norm", _of(drift, final_norm), low=TENS_OF_THOUSANDS,
        )
    ]  # fmt: skip
    for name, cure in (("a raw readout", raw), ("the penalised one", penalised)):
        found.append(
            _claim(
                f"… above that of {name}", f"{least:,.0f} times or more",
                "ratio of final norms", _ratio(drift, cure, final_norm), low=1.0,
            )
        )  # fmt: skip
    for name, cure in (("A raw readout", raw), ("The penalty", penalised)):
        found.append(
            _claim(
                f"{name} keeps the norm in the tens", tens_text, "final norm",
                _of(cure, final_norm), high=HUNDRED,
            )
        )  # fmt: skip
    found += [
        _claim(
            "Behind RMSNorm the gradient of a loop's loss has no part along its state",
            f"{PUBLISHED_RADIAL[0]:g}", "radial fraction", _of(drift, radial), high=UNSEEN,
        ),
        _claim(
            "Behind a raw readout it has", f"{PUBLISHED_RADIAL[1]:g}", "radial fraction",
            _of(raw, radial), low=VISIBLE,
        ),
        _claim(
            "The perplexity of the normalised baseline hardly changes with the loops",
            "near invariance", "largest perplexity of loops 1 … K over the smallest",
            _of(drift, perplexity_range), high=1 + NEARLY,
        ),
        _claim(
            "The angular step falls as 1 / s", "lemma", "exponent of s",
            _of(drift, lambda run: run["probe.angle_slope"], log=False),
            low=-1 - NEAR_ONE, high=-1 + NEAR_ONE,
        ),
        _claim(
            "The radial step does not depend on the scale", "lemma",
            "radial step at twice the scale over that at the scale",
            _of(drift, lambda run: run["probe.radial_ratio"][-1], log=False),
            low=1 - NEAR_ONE, high=1 + NEAR_ONE,
        ),
    ]  # fmt: skip
    for name, cure in (("raw readout", raw), ("penalty", penalised), ("norm between", between)):
        found.append(
            _claim(
                f"Controlled scale is better at the same depth: {name}",
                "lower perplexity", "perplexity over that of the normalised baseline",
                _ratio(cure, drift, final_perplexity), high=1.0,
            )
        )  # fmt: skip
    return found


def pick(
    groups: Sequence[Group],
    *,
    readout_norm: str = "every",
    state_norm: str = "none",
    penalised: bool = False,
) -> Group | None:
    """The group with the loss at every loop and this cure, or none; equal weights of the loops.

    Of several penalties the smallest.
    """
    fitting = [
        each
        for each in groups
        if (each.condition.supervision, each.condition.readout_norm, each.condition.state_norm)
        == ("every", readout_norm, state_norm)
        and bool(each.condition.norm_penalty) == penalised
        and not each.condition.loop_weights
    ]
    return min(fitting, key=lambda each: each.condition.norm_penalty, default=None)


def final_norm(run: Measured) -> Estimate:
    """Mean ‖h_K‖ of the trained depth."""
    return run["norm.mean"][run["trained_loops"]]


def radial(run: Measured) -> Estimate:
    """Radial fraction of the gradient of the loss that is read from the trained depth."""
    return run["radial_fraction.immediate.mean"][run["trained_loops"] - 1]


def final_perplexity(run: Measured) -> Estimate:
    return run["perplexity"][run["trained_loops"] - 1]


def perplexity_range(run: Measured) -> Estimate:
    """Largest over smallest perplexity among the loops up to the trained depth.

    Its own interval ignores that the loops score the same text, so it is too wide.
    """
    upto = run["perplexity"][: run["trained_loops"]]
    most, least = max(upto, key=lambda e: e.value), min(upto, key=lambda e: e.value)
    interval = None
    if most.ci95 is not None and least.ci95 is not None:
        interval = (most.ci95[0] / least.ci95[1], most.ci95[1] / least.ci95[0])
    return Estimate(most.value / least.value, None, interval)


def decide(interval: tuple[float, float] | None, low: float, high: float) -> str:
    """Whether an interval lies within [low, high], outside, or across an end."""
    if interval is None or not np.isfinite(interval).all():
        return OPEN
    if low <= interval[0] and interval[1] <= high:
        return HOLDS
    return FAILS if interval[1] < low or interval[0] > high else OPEN


def _claim(
    text: str,
    published: str,
    quantity: str,
    here: OverSeeds | None,
    *,
    low: float = -math.inf,
    high: float = math.inf,
) -> Claim:
    if math.isinf(low):
        rule = f"at most {high:,g}"
    elif math.isinf(high):
        rule = f"at least {low:,g}"
    else:
        rule = f"{low:,g} to {high:,g}"
    verdict = MISSING if here is None else decide(here.ci95, low, high)
    return Claim(text, published, quantity, here, rule, verdict)


def _of(group: Group | None, quantity, *, log: bool = True) -> OverSeeds | None:
    return None if group is None else group.over_seeds(quantity, log=log)


def _ratio(above: Group | None, below: Group | None, quantity) -> OverSeeds | None:
    if above is None or below is None:
        return None
    return ratio(above.over_seeds(quantity, log=True), below.over_seeds(quantity, log=True))
