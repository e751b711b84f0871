"""Elastic depth: loss at every depth, where models saturate, and how fast tokens settle.

Works on what the suites ``depth`` and ``convergence`` of looped_jax.evaluate measured
(arXiv:2607.14427). Loops count from 1; KL(p_i ‖ p_{i−1}) is in nats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.errors import AnalysisError
from analysis.estimate import Estimate
from analysis.tables.measured import Measured, estimate
from analysis.tables.suites import parts

#: Half widths of a 95 % interval in standard errors.
Z95 = 1.96


@dataclass(frozen=True)
class Elasticity:
    """Loss of one model at every depth.

    Attributes:
        sampled: whether the depth was drawn in training; ``mean`` is that of the draws.
        depths, loss: ascending, nats.
        difference: loss at each depth minus that at the depth nearest the training mean, paired.
        saturation: first depth with 99 % of what depth brings; ``ratio`` is over the mean.
    """

    run: str
    sampled: bool
    mean: float
    depths: np.ndarray
    loss: list[Estimate]
    difference: list[Estimate]
    saturation: Estimate
    ratio: Estimate
    unit: str

    @property
    def improves_until(self) -> int | None:
        """The last depth below the mean whose loss is above that of the mean beyond its interval;
        None where not even the first is."""
        above = [
            int(depth)
            for depth, each in zip(self.depths, self.difference, strict=True)
            if depth < self.mean and each.ci95 is not None and each.ci95[0] > 0
        ]
        return max(above, default=None)

    @property
    def is_monotone_to_mean(self) -> bool:
        """Whether the loss falls from each depth to the next, up to the mean."""
        loss = [e.value for d, e in zip(self.depths, self.loss, strict=True) if d <= self.mean]
        return all(b < a for a, b in itertools.pairwise(loss))

    def worst_beyond(self) -> tuple[int, Estimate]:
        """The depth beyond the training mean at which loss is highest, and its difference."""
        beyond = np.flatnonzero(self.depths > self.mean)
        index = max(beyond, key=lambda i: self.difference[i].value, default=len(self.depths) - 1)
        return int(self.depths[index]), self.difference[index]

    def at(self, depth: float) -> tuple[int, Estimate]:
        """The measured depth nearest to this one, and its difference to the training mean."""
        index = int(np.argmin(np.abs(self.depths - depth)))
        return int(self.depths[index]), self.difference[index]


def elasticity(measured: Measured[parts.Depth]) -> Elasticity:
    """Of one run's ``depth`` part."""
    part = measured.part
    training, saturation = part["training"], part["saturation"]
    return Elasticity(
        run=measured.run,
        sampled=training["kind"] != "fixed",
        mean=float(training["mean"]),
        depths=np.asarray(part["depths"]),
        loss=[estimate(each) for each in part["loss"]],
        difference=[estimate(each) for each in part["against_mean"]["difference"]],
        saturation=estimate(saturation["depth"]),
        ratio=estimate(saturation["over_training_mean"]),
        unit=str(part["bootstrap"]["unit"]),
    )


@dataclass(frozen=True)
class SaturationTest:
    """Is the useful depth the training mean? The hypothesis is slope 1 and ratio 1.

    Attributes:
        runs: the sampled-depth models that were compared.
        slope: of log saturation depth on log training mean, by least squares; its standard error
            from those of the depths (delta method), None with fewer than two means.
        ratios: saturation depth over training mean of each.
    """

    runs: list[str]
    slope: Estimate | None
    ratios: list[Estimate]

    @property
    def holds(self) -> bool:
        """Whether 1 lies within every interval."""
        every = [*self.ratios, *([self.slope] if self.slope else [])]
        return all(e.ci95 is not None and e.ci95[0] <= 1 <= e.ci95[1] for e in every)


def saturation_test(models: Sequence[Elasticity]) -> SaturationTest | None:
    """Over the models whose depth was drawn; None without any."""
    sampled = [model for model in models if model.sampled]
    if not sampled:
        return None
    ratios, runs = [model.ratio for model in sampled], [model.run for model in sampled]
    x = np.log([model.mean for model in sampled])
    if len(np.unique(x)) < 2:
        return SaturationTest(runs, None, ratios)
    y = np.log([model.saturation.value for model in sampled])
    # Standard error of a log: that of the depth over the depth.
    errors = np.array([(m.saturation.se or 0.0) / m.saturation.value for m in sampled])
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    slope, error = float(weights @ y), float(np.sqrt(np.sum((weights * errors) ** 2)))
    interval = (slope - Z95 * error, slope + Z95 * error)
    return SaturationTest(runs, Estimate(slope, error, interval), ratios)


@dataclass(frozen=True)
class Settling:
    """How the tokens of one model settle at one ε.

    Attributes:
        loops: 2 … R; ``histogram`` counts the tokens that settle at each, ``unsettled`` the rest.
        by_type: (loops, counts) of each token type, with its median and its tail.
    """

    epsilon: float
    loops: np.ndarray
    histogram: np.ndarray
    unsettled: int
    median: Estimate
    tail_at_mean: Estimate
    groups: dict[str, dict[str, Settling]]

    @property
    def tokens(self) -> int:
        return int(self.histogram.sum()) + self.unsettled


@dataclass(frozen=True)
class Convergence:
    """How the output of one model converges from loop to loop.

    Attributes:
        loops: 2 … R, at which a loop can be compared with the one before.
        kl_median, kl_mean: over tokens; ``kl_quantiles`` by their level.
        decades_per_loop: how many orders of magnitude the median KL falls with each loop, by least
            squares over all loops.
    """

    run: str
    measured: Measured[parts.Convergence]
    mean: float
    mean_depth: int
    loops: np.ndarray
    kl_median: list[Estimate]
    kl_mean: list[Estimate]
    kl_quantiles: dict[float, np.ndarray]
    argmax_changed: list[Estimate]
    change: list[Estimate]
    angle: list[Estimate]
    settling: list[Settling]
    unit: str

    @property
    def recurrences(self) -> int:
        return int(self.loops[-1])

    @property
    def decades_per_loop(self) -> float | None:
        median = np.array([each.value for each in self.kl_median])
        usable = median > 0
        if usable.sum() < 2:
            return None
        slope, _ = np.polyfit(self.loops[usable], np.log10(median[usable]), 1)
        return float(-slope)

    def at(self, epsilon: float) -> Settling:
        """Settling at one of the thresholds that were measured.

        Raises:
            AnalysisError: another one; those that there are are named.
        """
        for each in self.settling:
            if math.isclose(each.epsilon, epsilon, rel_tol=1e-6):
                return each
        have = ", ".join(f"{each.epsilon:g}" for each in self.settling)
        raise AnalysisError(f"epsilon {epsilon:g}: {self.run} was measured at {have}")


def convergence(measured: Measured[parts.Convergence]) -> Convergence:
    """Of one run's ``convergence`` part."""
    part = measured.part
    kl, loops = part["kl"], np.asarray(part["loops"])
    many = lambda rows: [estimate(each) for each in rows]
    return Convergence(
        run=measured.run,
        measured=measured,
        mean=float(part["training"]["mean"]),
        mean_depth=int(part["mean_depth"]),
        loops=loops,
        kl_median=many(kl["median"]),
        kl_mean=many(kl["mean"]),
        kl_quantiles={float(q): np.asarray(row) for q, row in kl["quantiles"].items()},
        argmax_changed=many(part["argmax_changed"]),
        change=many(part["relative_change"]["mean"]),
        angle=many(part["angle"]["mean"]),
        settling=[_settling(each, loops) for each in part["settled"]],
        unit=part["bootstrap"]["unit"],
    )


def _settling(part: parts.Settled, loops: np.ndarray) -> Settling:
    groups = {
        "type": part["by_type"],
        "loss": part["by_loss"],
        "position": part["by_position"],
        "frequency": part["by_frequency"],
    }
    of = lambda tokens, groups: Settling(
        epsilon=float(part["epsilon"]),
        loops=loops,
        histogram=np.asarray(tokens["histogram"]),
        unsettled=int(tokens["unsettled"]),
        median=estimate(tokens["median"]),
        tail_at_mean=estimate(tokens["tail_at_mean"]),
        groups=groups,
    )
    named = {
        grouping: {name: of(tokens, {}) for name, tokens in members.items()}
        for grouping, members in groups.items()
    }
    return of(part, named)


def usual_epsilon(models: Sequence[Convergence]) -> float:
    """The measured threshold at which the tokens of all models are told apart best.

    The one whose settling loops are spread most evenly, by the entropy of their histogram; so that
    a figure neither shows all tokens in its first column nor all in its last.
    """
    shared = set.intersection(*({each.epsilon for each in model.settling} for model in models))
    if not shared:
        raise AnalysisError("epsilon: the runs were measured at no common threshold")

    def spread(epsilon: float) -> float:
        total = 0.0
        for model in models:
            settling = model.at(epsilon)
            share = np.append(settling.histogram, settling.unsettled) / settling.tokens
            total -= float(np.sum(share[share > 0] * np.log(share[share > 0])))
        return total

    return max(sorted(shared), key=spread)
