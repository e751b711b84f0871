"""Elastic depth: loss at every depth, up to where it is useful, and how fast tokens settle.

Works on what the suites ``depth`` and ``convergence`` of looped_jax.evaluate measured
(arXiv:2607.14427). Loops count from 1; KL(p_i ‖ p_{i−1}) is in nats.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from analysis.errors import AnalysisError
from analysis.tables.estimate import Estimate
from analysis.tables.measured import Measured

# --- suite depth ----------------------------------------------------------------------------------


def is_sampled(run: Measured) -> bool:
    """Whether the depth was drawn in training."""
    return run["training.kind"] != "fixed"


def improves_until(run: Measured) -> int | None:
    """The last depth below the training mean whose loss is above that of the mean beyond its
    interval; None where not even the first is."""
    above = [
        depth
        for depth, each in zip(run["depths"], run["against_mean.difference"], strict=True)
        if depth < run["training.mean"] and each.ci95 is not None and each.ci95[0] > 0
    ]
    return max(above, default=None)


def is_monotone_to_mean(run: Measured) -> bool:
    """Whether the loss falls from each depth to the next, up to the training mean."""
    pairs = zip(run["depths"], run["loss"], strict=True)
    loss = [each.value for depth, each in pairs if depth <= run["training.mean"]]
    return all(b < a for a, b in itertools.pairwise(loss))


def worst_beyond(run: Measured) -> tuple[int, Estimate]:
    """The depth beyond the training mean at which loss is highest, and its difference."""
    pairs = list(zip(run["depths"], run["against_mean.difference"], strict=True))
    beyond = [pair for pair in pairs if pair[0] > run["training.mean"]]
    return max(beyond, key=lambda pair: pair[1].value, default=pairs[-1])


def nearest(run: Measured, depth: float) -> tuple[int, Estimate]:
    """The measured depth nearest to this one, and its loss minus that at the training mean."""
    pairs = zip(run["depths"], run["against_mean.difference"], strict=True)
    return min(pairs, key=lambda pair: abs(pair[0] - depth))


@dataclass(frozen=True)
class UsefulDepthTest:
    """Is the useful depth the training mean? The hypothesis is slope 1 and ratio 1.

    Attributes:
        runs: the sampled-depth models that were compared.
        slope: of log useful depth on log training mean, by least squares; its standard error
            from those of the depths (delta method), None with fewer than two means.
        ratios: useful depth over training mean of each.
    """

    runs: list[str]
    slope: Estimate | None
    ratios: list[Estimate]

    @property
    def holds(self) -> bool:
        """Whether 1 lies within every interval."""
        every = [*self.ratios, *([self.slope] if self.slope else [])]
        return all(e.ci95 is not None and e.ci95[0] <= 1 <= e.ci95[1] for e in every)


def useful_depth_test(runs: Sequence[Measured]) -> UsefulDepthTest | None:
    """Over the models whose depth was drawn; None without any."""
    sampled = [run for run in runs if is_sampled(run)]
    if not sampled:
        return None
    names = [run.run for run in sampled]
    ratios = [run["useful.over_training_mean"] for run in sampled]
    x = np.log([run["training.mean"] for run in sampled])
    if len(np.unique(x)) < 2:
        return UsefulDepthTest(names, None, ratios)
    depths = [run["useful.depth"] for run in sampled]
    # Standard error of a log: that of the depth over the depth.
    errors = np.array([(depth.se or 0.0) / depth.value for depth in depths])
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    slope = float(weights @ np.log([depth.value for depth in depths]))
    error = float(np.linalg.norm(weights * errors))
    return UsefulDepthTest(names, Estimate.normal(slope, error), ratios)


# --- suite convergence ----------------------------------------------------------------------------


def decades_per_loop(run: Measured) -> float | None:
    """Orders of magnitude that the median KL falls with each loop, by least squares over all."""
    median = np.array([each.value for each in run["kl.median"]])
    usable = median > 0
    if usable.sum() < 2:
        return None
    slope, _ = np.polyfit(np.array(run["loops"])[usable], np.log10(median[usable]), 1)
    return float(-slope)


def settled(run: Measured, epsilon: float) -> dict[str, Any]:
    """How tokens settle at one of the thresholds that were measured.

    Raises:
        AnalysisError: another one; those that there are are named.
    """
    for each in run["settled"]:
        if math.isclose(each["epsilon"], epsilon, rel_tol=1e-6):
            return each
    have = ", ".join(f"{each['epsilon']:g}" for each in run["settled"])
    raise AnalysisError(f"epsilon {epsilon:g}: {run.run} was measured at {have}")


def usual_epsilon(runs: Sequence[Measured]) -> float:
    """The measured threshold at which the tokens of all models are told apart best.

    The one whose settling loops are spread most evenly, by the entropy of their histogram; so that
    a figure neither shows all tokens in its first column nor all in its last.
    """
    shared = set.intersection(*({each["epsilon"] for each in run["settled"]} for run in runs))
    if not shared:
        raise AnalysisError("epsilon: the runs were measured at no common threshold")

    def spread(epsilon: float) -> float:
        parts = [settled(run, epsilon) for run in runs]
        return sum(stats.entropy([*each["histogram"], each["unsettled"]]) for each in parts)

    return max(sorted(shared), key=spread)
