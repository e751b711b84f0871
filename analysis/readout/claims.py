"""What arXiv:2606.24898 says of its models, and whether runs of another scale agree.

Every claim is a range for a number that the runs have too. It holds where the whole 95 % interval
lies within, does not hold where the whole interval lies outside, and is undecided between.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.readout.results import Group, OverSeeds, ratio
from analysis.tables.estimate import Estimate
from analysis.tables.measured import Measured

HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "undecided", "not measured"

UNSEEN = 1e-6  # what float32 and RMSNorm's epsilon, ε / (mean h² + ε), may leave of a zero
VISIBLE = 1e-3


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
    """Every claim, on groups of one shape; the published numbers are of 44M and 129M parameters."""
    drift = pick(groups)
    cures = {
        "raw readout": pick(groups, readout_norm="none"),
        "penalty": pick(groups, penalised=True),
        "norm between": pick(groups, state_norm="between") or pick(groups, state_norm="every"),
    }
    norms = ("raw readout", "penalty")
    growth = "Loss at every loop behind RMSNorm drives the norm into the tens of thousands"
    blind = "Behind RMSNorm the gradient of a loop's loss has no part along its state"
    flat = "The perplexity of the normalised baseline hardly changes with the loops"
    spread = "largest perplexity of loops 1 … K over the smallest"
    angle = lambda run: run["probe.angle_slope"]
    step = lambda run: run["probe.radial_ratio"][-1]
    constant, twice = (
        "The radial step does not depend on the scale",
        "radial step at twice the scale",
    )
    return [
        _claim(growth, "39,207 / 56,051", "final norm", _of(drift, final_norm), low=1e4),
        *(
            _claim(
                f"… above that with the {name}", "472 times or more", "ratio of final norms",
                _ratio(drift, cures[name], final_norm), low=1.0,
            )
            for name in norms
        ),
        *(
            _claim(
                f"The {name} keeps the norm in the tens", "17 to 83", "final norm",
                _of(cures[name], final_norm), high=100.0,
            )
            for name in norms
        ),
        _claim(blind, "1e-09", "radial fraction", _of(drift, radial), high=UNSEEN),
        _claim(
            "Behind a raw readout it has", "0.01", "radial fraction",
            _of(cures["raw readout"], radial), low=VISIBLE,
        ),
        _claim(flat, "near invariance", spread, _of(drift, perplexity_range), high=1.05),
        _claim(
            "The angular step falls as 1 / s", "lemma", "exponent of s",
            _of(drift, angle, log=False), low=-1.1, high=-0.9,
        ),
        _claim(
            constant, "lemma", f"{twice} over that at the scale",
            _of(drift, step, log=False), low=0.9, high=1.1,
        ),
        *(
            _claim(
                f"Controlled scale is better at the same depth: {name}", "lower perplexity",
                "perplexity over that of the normalised baseline",
                _ratio(cure, drift, final_perplexity), high=1.0,
            )
            for name, cure in cures.items()
        ),
    ]  # fmt: skip


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
