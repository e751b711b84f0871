"""The readout blind spot: who controls the scale of the recurrent state (arXiv:2606.24898).

Works on what the suite ``readout`` of looped_jax.evaluate measured. Runs that differ in their seed
alone stand for one condition; intervals over seeds are Student's t, on logarithms where the
quantity is a scale. Loops count from 1, the start is loop 0; losses are in nats.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.page.numbers import shown, significant
from analysis.tables.estimate import Estimate
from analysis.tables.measured import Measured

READOUTS = {"every": "RMSNorm", "none": "raw", "last": "RMSNorm at the last loop"}
STATE_NORMS = {
    "between": "between loops",
    "every": "between loops, before the readout",
    "last": "after the last loop",
}


@dataclass(frozen=True, order=True)
class Condition:
    """What the loss sees, and what bounds the scale. The fields are those of the run's config."""

    supervision: str
    readout_norm: str
    norm_penalty: float
    state_norm: str
    loop_weights: tuple[float, ...]
    injection: str

    @property
    def label(self) -> str:
        """Such as "every loop, RMSNorm + penalty 0.01"."""
        text = f"{self.supervision} loop, {READOUTS[self.readout_norm]}"
        if self.norm_penalty:
            text += f" + penalty {self.norm_penalty:g}"
        if self.state_norm != "none":
            text += f" + norm {STATE_NORMS[self.state_norm]}"
        if self.loop_weights:
            text += f", weights {':'.join(f'{w:g}' for w in self.loop_weights)}"
        return text if self.injection == "passthrough" else f"{text}, {self.injection} injection"


def condition(run: Measured) -> Condition:
    """Of one run."""
    values = run["condition"]
    return Condition(**values | {"loop_weights": tuple(values["loop_weights"])})


@dataclass(frozen=True)
class OverSeeds:
    """A number for each seed, their mean, and its 95 % interval.

    With one seed the interval is that of the run, over its text; it knows nothing of other seeds.
    """

    values: tuple[float, ...]
    value: float
    ci95: tuple[float, float] | None

    @property
    def seeds(self) -> int:
        return len(self.values)

    def text(self, digits: int = 3) -> str:
        return shown(self, significant(digits))


@dataclass(frozen=True)
class Group:
    """The runs of one condition and shape, by seed."""

    condition: Condition
    width: int
    trained_loops: int
    loops: int
    runs: tuple[Measured, ...]

    @property
    def label(self) -> str:
        return self.condition.label

    def over_seeds(
        self, quantity: Callable[[Measured], Estimate], *, log: bool = False
    ) -> OverSeeds:
        """A quantity of every run together; `log` for positive scales, whose mean is geometric."""
        return over_seeds([quantity(run) for run in self.runs], log=log)


def group(runs: Sequence[Measured]) -> list[Group]:
    """Runs by shape and condition; within a shape in the order of the study's 2 × 2."""

    def key(run: Measured) -> tuple:
        case = condition(run)
        shape = run["width"], run["trained_loops"], run["loops"]
        return *shape, case.state_norm != "none", case.norm_penalty, case

    ordered = sorted(runs, key=lambda run: (*key(run), run["seed"], run.run))
    return [
        Group(case, width, trained_loops, loops, tuple(same))
        for (width, trained_loops, loops, *_, case), same in itertools.groupby(ordered, key)
    ]


def shapes(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that can be compared: of one width, trained depth and measured depth."""
    shape = lambda each: (each.width, each.trained_loops, each.loops)
    return [list(same) for _, same in itertools.groupby(groups, shape)]


def over_seeds(estimates: Sequence[Estimate], *, log: bool = False) -> OverSeeds:
    """The mean over seeds with a Student's t interval, or one run's own interval."""
    values = tuple(each.value for each in estimates)
    if len(values) == 1:
        return OverSeeds(values, values[0], estimates[0].ci95)
    x = np.log(values) if log else np.asarray(values)
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    back = np.exp if log else (lambda y: y)
    low, mean, high = (float(back(x.mean() + step)) for step in (-half, 0.0, half))
    return OverSeeds(values, mean, (low, high))


def ratio(above: OverSeeds, below: OverSeeds) -> OverSeeds:
    """Quotient of two geometric means, with Welch's interval on the logarithm.

    With a single seed on a side the ends of the intervals over text are divided instead.
    """
    value = above.value / below.value
    if min(above.seeds, below.seeds) < 2:
        if above.ci95 is None or below.ci95 is None:
            return OverSeeds((value,), value, None)
        ends = (above.ci95[0] / below.ci95[1], above.ci95[1] / below.ci95[0])
        return OverSeeds((value,), value, ends)
    a, b = np.log(above.values), np.log(below.values)
    squares = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    error, half = np.sqrt(sum(squares)), 0.0
    if error > 0:
        freedom = error**4 / (squares[0] ** 2 / (len(a) - 1) + squares[1] ** 2 / (len(b) - 1))
        half = stats.t.ppf(0.975, freedom) * error
    difference = a.mean() - b.mean()
    ends = float(np.exp(difference - half)), float(np.exp(difference + half))
    return OverSeeds(tuple(np.exp(a - b.mean()).tolist()), value, ends)
