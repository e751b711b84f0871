"""Exit policies on a frozen model: what they save and what they lose, as measured by ``exits``.

Works on what the suite ``exits`` of looped_jax.evaluate measured: points (policy, carry, threshold)
with mean loops, loss and forward FLOPs per token, the cost of the exit tests included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.estimate import Estimate
from analysis.tables.measured import Measured, estimate
from analysis.tables.suites import parts

UNIFORM = "uniform"
#: What others see of an exited token, in words.
CARRIES = {
    "carry": "exited tokens show others their last keys and values",
    "full_depth": "exited tokens look to others as if they went on (an oracle: nothing is saved)",
}


@dataclass(frozen=True)
class Point:
    """A policy at one threshold; losses in nats, FLOPs forward and per token.

    Attributes:
        against_uniform_loops, against_uniform_flops: loss minus that of uniform depth at equal
            mean loops, and at equal FLOPs; NaN outside what uniform depth covers.
        test_share: of the FLOPs, what the exit tests take.
    """

    policy: str
    carry: str
    threshold: float
    mean_loops: Estimate
    loss: Estimate
    against_full_depth: Estimate
    agreement: Estimate
    flops: Estimate
    test_share: float
    against_uniform_loops: Estimate
    against_uniform_flops: Estimate


@dataclass(frozen=True)
class EqualQuality:
    """Loops and FLOPs for 99 % of what uniform depth brings, over those of uniform depth."""

    policy: str
    carry: str
    loops: Estimate
    loops_over_uniform: Estimate
    flops_over_uniform: Estimate
    share_reached: float


@dataclass(frozen=True)
class Exits:
    """One run's exits.

    Attributes:
        costs: forward FLOPs per token of "prelude", "recurrence" (one loop) and "readout".
        tests: forward FLOPs of one exit test, by policy.
        about: what each policy does, in a line.
    """

    run: str
    mean: float
    recurrences: int
    tokens: int
    unit: str
    points: list[Point]
    equal_quality: list[EqualQuality]
    costs: dict[str, float]
    tests: dict[str, float]
    about: dict[str, str]
    probe_quality: float | None

    @property
    def policies(self) -> list[str]:
        return list(self.about)

    @property
    def carries(self) -> list[str]:
        return list(dict.fromkeys(point.carry for point in self.points))

    @property
    def shown_carry(self) -> str:
        """The carry that a machine could run, if it was measured."""
        return "carry" if "carry" in self.carries else self.carries[0]

    def frontier(self, policy: str, carry: str) -> list[Point]:
        """A policy's points, by rising mean loops."""
        found = [p for p in self.points if (p.policy, p.carry) == (policy, carry)]
        return sorted(found, key=lambda point: point.mean_loops.value)


def exits(measured: Measured[parts.Exits]) -> Exits:
    """Of one run's ``exits`` part."""
    part = measured.part
    costs = part["costs"]
    return Exits(
        run=measured.run,
        mean=float(part["training"]["mean"]),
        recurrences=int(part["recurrences"]),
        tokens=int(part["tokens"]),
        unit=str(part["bootstrap"]["unit"]),
        points=[_point(each) for each in part["points"]],
        equal_quality=[
            EqualQuality(
                policy=each["policy"],
                carry=each["carry"],
                loops=estimate(each["loops"]),
                loops_over_uniform=estimate(each["loops_over_uniform"]),
                flops_over_uniform=estimate(each["flops_over_uniform"]),
                share_reached=float(each["share_reached"]),
            )
            for each in part["at_equal_quality"]
        ],
        tests=costs["tests"],
        costs={name: costs[name] for name in ("prelude", "recurrence", "readout")},
        about=dict(part["policies"]),
        probe_quality=part["probe"]["scored_area_under_roc"],
    )


def _point(each: parts.ExitPoint) -> Point:
    flops = estimate(each["flops_per_token"])
    return Point(
        policy=each["policy"],
        carry=each["carry"],
        threshold=float(each["threshold"]),
        mean_loops=estimate(each["mean_loops"]),
        loss=estimate(each["loss"]),
        against_full_depth=estimate(each["against_full_depth"]),
        agreement=estimate(each["agreement"]),
        flops=flops,
        test_share=float(each["test_flops_per_token"]) / flops.value,
        against_uniform_loops=estimate(each["against_uniform_at_equal_loops"]),
        against_uniform_flops=estimate(each["against_uniform_at_equal_flops"]),
    )


@dataclass(frozen=True)
class Verdict:
    """Whether a policy beats uniform depth at an equal cost, at its best and worst point.

    Attributes:
        better, worse: thresholds whose loss is below (above) that of uniform depth at equal cost,
            beyond its interval; compared: all that could be compared.
        best: the point with the lowest difference.
    """

    policy: str
    carry: str
    better: int
    worse: int
    compared: int
    best: Point | None


def verdict(model: Exits, policy: str, carry: str, cost: str) -> Verdict:
    """At equal mean ``cost``, "loops" or "flops"."""
    name = f"against_uniform_{cost}"
    found = [(point, getattr(point, name)) for point in model.frontier(policy, carry)]
    found = [(point, each) for point, each in found if each.ci95 is not None]
    return Verdict(
        policy,
        carry,
        better=sum(each.ci95[1] < 0 for _, each in found),
        worse=sum(each.ci95[0] > 0 for _, each in found),
        compared=len(found),
        best=min(found, key=lambda pair: pair[1].value)[0] if found else None,
    )


def order(models: Sequence[Exits]) -> list[str]:
    """All policies of several runs, uniform depth first, each in one place."""
    names = dict.fromkeys(name for model in models for name in model.policies)
    return sorted(names, key=lambda name: name != UNIFORM)
