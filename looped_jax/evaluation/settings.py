"""What the suites can be asked for beyond the run's config: the flags of looped_jax.evaluate."""

import dataclasses
import json
import math
from typing import Any

from looped_jax.config import RunConfig
from looped_jax.errors import UserError

# Half decades, in nats.
EPSILONS = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Choices of one evaluation.

    Attributes:
      max_windows: held-out windows that a suite scores; 0 takes the config's number.
      depths: of the depth suite; () for every depth up to twice the mean training depth and a
        quarter of the mean apart up to four times.
      recurrences: R, loops that convergence, exits and readout run; 0 for twice the mean training
        depth.
      epsilons: thresholds on the KL divergence in nats, at which tokens count as settled and exit.
      exit: a rule that the loss suite scores the text with as well; "" for none.
      policies: exit policies by name; () for all that there are.
      carries: what an exited token shows to others, by name; () for all.
      resamples, seed: of the bootstrap.

    Raises:
      UserError: a number that is not allowed.
    """

    max_windows: int = 0
    depths: tuple[int, ...] = ()
    recurrences: int = 0
    epsilons: tuple[float, ...] = EPSILONS
    exit: str = ""
    policies: tuple[str, ...] = ()
    carries: tuple[str, ...] = ()
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_windows < 0:
            raise UserError(f"max_windows = {self.max_windows}; allowed: 0 (the config's) or more")
        if bad := [depth for depth in self.depths if depth < 1]:
            raise UserError(f"depths has {bad[0]}; allowed: 1 recurrence or more")
        if self.recurrences < 0:
            raise UserError(f"recurrences = {self.recurrences}; allowed: 1 or more")
        for epsilon in self.epsilons:
            if not (epsilon > 0 and math.isfinite(epsilon)):
                raise UserError(f"epsilons has {epsilon:g}; allowed: above 0 nats")
        if not self.epsilons:
            raise UserError("epsilons is empty; allowed: one threshold in nats or more")
        if self.resamples < 2:
            raise UserError(f"resamples = {self.resamples}; allowed: 2 or more")

    def to_json(self) -> dict[str, Any]:
        """As JSON values, to find again in a summary."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def chosen_depths(self, run: RunConfig) -> tuple[int, ...]:
        """Depths of the depth suite, ascending.

        Raises:
          UserError: a depth beyond the lane table of hyperconnections.
        """
        if self.depths:
            depths = sorted(set(self.depths))
            check_depth(run, depths[-1], "depths")
            return tuple(depths)
        mean = math.ceil(run.depth.mean)
        apart = max(1, mean // 4)
        depths = [*range(1, 2 * mean), *range(2 * mean, 4 * mean + 1, apart)]
        return tuple(depth for depth in depths if depth <= deepest(run))

    def chosen_recurrences(self, run: RunConfig) -> int:
        """R of convergence, exits and readout.

        Raises:
          UserError: more than the lane table of hyperconnections has, or fewer than two loops.
        """
        recurrences = self.recurrences or int(min(2 * math.ceil(run.depth.mean), deepest(run)))
        check_depth(run, recurrences, "recurrences")
        if recurrences < 2:
            raise UserError(f"recurrences = {recurrences}; allowed: 2 loops or more to compare")
        return recurrences

    def rule_recurrences(self, run: RunConfig) -> int:
        """R of exit rules: at most the largest depth that training drew, unless it is given.

        Beyond that depth, tokens that have not settled get worse.
        """
        return self.recurrences or max(2, min(self.chosen_recurrences(run), run.depth.maximum))


def deepest(run: RunConfig) -> float:
    """Most recurrences that the model can run: rows of the lane table, or without a bound."""
    return run.model.recurrences if run.model.injection == "hyperconnect" else math.inf


def check_depth(run: RunConfig, depth: int, name: str) -> None:
    """Raises UserError for a depth beyond the lane table."""
    if depth > deepest(run):
        raise UserError(
            f"{name} has {depth}; allowed for {run.name}: up to {run.model.recurrences}, "
            "the rows of its lane table"
        )
