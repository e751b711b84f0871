"""The readout blind spot: who controls the scale of the recurrent state (arXiv:2606.24898).

Works on what the suite ``readout`` of looped_jax.evaluate measured. Runs that differ in their seed
alone stand for one condition; intervals over seeds are Student's t, on logarithms where the
quantity is a scale. Loops count from 1, the start is loop 0; losses are in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.estimate import Estimate
from analysis.page.numbers import shown, significant
from analysis.tables.measured import Measured, estimate
from analysis.tables.suites import parts

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


@dataclass(frozen=True)
class Readout:
    """One run's measurements.

    Attributes:
        trained_loops, loops: K, and R that were run.
        norm: "mean", "median", "p99", "tail_index" of ‖h_i‖ over tokens, i = 0 … R.
        immediate, objective: radial fraction of the gradients, i = 1 … R and 1 … K.
        update: parts of each update i = 1 … R; probe: the same of the trained depth's states at
            several scales.
        loss, perplexity: i = 1 … R; clamps: by intervention, its loss minus that without.
        tokens_per_second, flops: of the forward pass with 1 … R loops; quartiles of the former.
    """

    run: str
    condition: Condition
    seed: int
    trained_loops: int
    loops: int
    width: int
    unit: str
    norm: dict[str, list[Estimate]]
    immediate: list[Estimate]
    objective: list[Estimate]
    update: dict[str, list[Estimate]]
    probe: dict[str, list[Estimate]]
    angle_slope: Estimate
    radial_ratio: list[Estimate]
    loss: list[Estimate]
    perplexity: list[Estimate]
    clamps: dict[str, list[Estimate]]
    tokens_per_second: np.ndarray
    quartiles: np.ndarray
    flops: np.ndarray
    device: str


def readout(measured: Measured[parts.Readout]) -> Readout:
    """Of one run's ``readout`` part."""
    part = measured.part
    condition, fraction, probe = part["condition"], part["radial_fraction"], part["probe"]
    throughput = part["throughput"]
    many = lambda rows: [estimate(row) for row in rows]
    every = lambda named: {name: many(rows) for name, rows in named.items()}
    return Readout(
        run=measured.run,
        condition=Condition(
            supervision=condition["supervision"],
            readout_norm=condition["readout_norm"],
            norm_penalty=condition["norm_penalty"],
            state_norm=condition["state_norm"],
            loop_weights=tuple(condition["loop_weights"]),
            injection=condition["injection"],
        ),
        seed=part["seed"],
        trained_loops=part["trained_loops"],
        loops=part["loops"],
        width=part["width"],
        unit=part["bootstrap"]["unit"],
        norm=every(part["norm"]),
        immediate=many(fraction["immediate"]["mean"]),
        objective=many(fraction["objective"]["mean"]),
        update=every(part["update"]),
        probe={name: many(probe[name]) for name in ("size", "radial", "tangential", "angle")},
        angle_slope=estimate(probe["angle_slope"]),
        radial_ratio=many(probe["radial_ratio"]),
        loss=many(part["loss"]),
        perplexity=many(part["perplexity"]),
        clamps={
            "rescaled": many(part["clamp"]["rescaled"]["difference"]),
            "tangential": many(part["clamp"]["tangential"]["difference"]),
        },
        tokens_per_second=np.asarray(throughput["tokens_per_second"]),
        quartiles=np.asarray(throughput["quartiles"]),
        flops=np.asarray(throughput["flops_per_token"]),
        device=throughput["device"],
    )


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
    runs: tuple[Readout, ...]

    @property
    def label(self) -> str:
        return self.condition.label

    def over_seeds(
        self, quantity: Callable[[Readout], Estimate], *, log: bool = False
    ) -> OverSeeds:
        """A quantity of every run together; `log` for positive scales, whose mean is geometric."""
        return over_seeds([quantity(run) for run in self.runs], log=log)


def group(runs: Sequence[Readout]) -> list[Group]:
    """Runs by shape and condition; within a shape in the order of the study's 2 × 2."""
    keys: dict[tuple, list[Readout]] = {}
    for run in runs:
        key = (run.width, run.trained_loops, run.loops, run.condition)
        keys.setdefault(key, []).append(run)
    order = lambda key: (*key[:3], key[3].state_norm != "none", key[3].norm_penalty, key[3])
    return [
        Group(
            condition=key[3],
            width=key[0],
            trained_loops=key[1],
            loops=key[2],
            runs=tuple(sorted(keys[key], key=lambda run: (run.seed, run.run))),
        )
        for key in sorted(keys, key=order)
    ]


def shapes(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that can be compared: of one width, trained depth and measured depth."""
    of: dict[tuple[int, int, int], list[Group]] = {}
    for each in groups:
        of.setdefault((each.width, each.trained_loops, each.loops), []).append(each)
    return list(of.values())


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
    error = np.sqrt(sum(squares))
    half = 0.0
    if error > 0:
        freedom = error**4 / (squares[0] ** 2 / (len(a) - 1) + squares[1] ** 2 / (len(b) - 1))
        half = stats.t.ppf(0.975, freedom) * error
    difference = a.mean() - b.mean()
    values = tuple(float(x) for x in np.exp(a - b.mean()))
    ends = float(np.exp(difference - half)), float(np.exp(difference + half))
    return OverSeeds(values, value, ends)
