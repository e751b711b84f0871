"""Quality against compute of exits: points with intervals, and comparisons at equal cost or loss.

Everything is resampled together over the units of the text (see scored/bootstrap.py), so the
differences between policies are paired.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from looped_jax.evaluation.exits.policies import Policy, costs_per_token, shown_threshold
from looped_jax.evaluation.scored.bootstrap import Bootstrap, estimate
from looped_jax.model.config import ModelConfig

# Policies are compared at the loss that has this share of what uniform depth brings.
QUALITY_SHARE = 0.99


@dataclasses.dataclass(frozen=True)
class Point:
    """A policy at one threshold under one carry, on N tokens.

    Attributes:
      loop, nats, agrees: exit loop, loss of the output, whether its argmax is that of full depth.
      flops, test_flops: forward FLOPs of the token, and the part that the exit tests take.
    """

    policy: Policy
    carry: str
    threshold: float
    loop: np.ndarray
    nats: np.ndarray
    agrees: np.ndarray
    flops: np.ndarray
    test_flops: np.ndarray


def flops_of_exits(
    policy: Policy,
    carry: str,
    model: ModelConfig,
    length: int,
    recurrences: int,
    loop_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Forward FLOPs of each token, and what of them the exit tests take, (N,).

    A policy that reads the output has it already when the token exits, so one of its looks is the
    readout that every token needs. Other tests are made after every loop that a token does. What
    the block costs depends on the carry: with "carry" a token costs its own loops; with
    "full_depth" all R loops (all tokens' equal number for the uniform policy).
    """
    costs = costs_per_token(model, length)
    loops_run_N = loop_N
    if carry == "full_depth" and policy.signal != "loop":
        loops_run_N = np.full_like(loop_N, recurrences)
    tests_N = loop_N * policy.test_flops_per_token(model, length)
    if policy.reads_output:
        tests_N = tests_N - costs["readout"]
    without_tests_N = costs["prelude"] + loops_run_N * costs["recurrence"] + costs["readout"]
    return without_tests_N + tests_N, tests_N


class Frontier:
    """All points of one model, measured on the same tokens."""

    def __init__(self, points: Sequence[Point], full_depth_nats: np.ndarray, bootstrap: Bootstrap):
        """`full_depth_nats` is the loss of each token after R loops, (N,)."""
        self._bootstrap = bootstrap
        self._full_S = bootstrap.means(full_depth_nats)
        means = lambda name: bootstrap.means(np.stack([getattr(p, name) for p in points]))
        self._points = list(points)
        self._loops, self._loss, self._agrees = means("loop"), means("nats"), means("agrees")
        self._flops, self._test_flops = means("flops"), means("test_flops")

    def to_json(self) -> list[dict[str, Any]]:
        """A row for each point; differences are to the uniform policy on the same tokens."""
        rows = []
        for i, point in enumerate(self._points):
            uniform = self._of("uniform", point.carry)
            at_equal = lambda cost, i=i, uniform=uniform: (
                self._loss[i] - interpolate(cost[uniform], self._loss[uniform], cost[i])
            )
            rows.append(
                {
                    "policy": point.policy.name,
                    "carry": point.carry,
                    "threshold": shown_threshold(point.policy, point.threshold),
                    "mean_loops": estimate(self._loops[i]).to_json(),
                    "loss": estimate(self._loss[i]).to_json(),
                    "against_full_depth": estimate(self._loss[i] - self._full_S).to_json(),
                    "agreement": estimate(self._agrees[i]).to_json(),
                    "flops_per_token": estimate(self._flops[i]).to_json(),
                    "test_flops_per_token": float(self._test_flops[i, 0]),
                    "against_uniform_at_equal_loops": estimate(at_equal(self._loops)).to_json(),
                    "against_uniform_at_equal_flops": estimate(at_equal(self._flops)).to_json(),
                }
            )
        return rows

    def at_equal_quality(self) -> list[dict[str, Any]]:
        """Loops and FLOPs that each policy needs for 99 % of what uniform depth brings.

        The target is L_best + 0.01 (L_1 − L_best) of the uniform policy; a policy that reaches it
        at none of its thresholds has nulls. `share_reached` is the share of resamples in which it
        does; the intervals are over those.
        """
        rows = []
        for policy, carry in dict.fromkeys((p.policy.name, p.carry) for p in self._points):
            uniform, own = self._of("uniform", carry), self._of(policy, carry)
            best_S = self._loss[uniform].min(axis=0)
            first_S = self._loss[uniform[0]]
            target_S = best_S + (1 - QUALITY_SHARE) * (first_S - best_S)
            row: dict[str, Any] = {
                "policy": policy,
                "carry": carry,
                "loss": estimate(target_S).to_json(),
            }
            for name, cost in (("loops", self._loops), ("flops", self._flops)):
                needed_S = cost_of_quality(cost[own], self._loss[own], target_S)
                uniform_S = cost_of_quality(cost[uniform], self._loss[uniform], target_S)
                row["share_reached"] = float(np.isfinite(needed_S[1:]).mean())
                row[name] = estimate(needed_S).to_json()
                row[f"{name}_over_uniform"] = estimate(needed_S / uniform_S).to_json()
            rows.append(row)
        return rows

    def _of(self, policy: str, carry: str) -> np.ndarray:
        """Indices of a policy's points, by rising mean loops."""
        found = [
            i for i, p in enumerate(self._points) if p.policy.name == policy and p.carry == carry
        ]
        return np.asarray(sorted(found, key=lambda i: self._loops[i, 0]))


def interpolate(cost_KS: np.ndarray, loss_KS: np.ndarray, at_S: np.ndarray) -> np.ndarray:
    """Loss at a cost, linear between K points by rising cost, of each column; NaN outside them."""
    return np.array(
        [
            np.interp(at, cost_K, loss_K, left=np.nan, right=np.nan)
            for cost_K, loss_K, at in zip(cost_KS.T, loss_KS.T, at_S, strict=True)
        ]
    )


def cost_of_quality(cost_KS: np.ndarray, loss_KS: np.ndarray, target_S: np.ndarray) -> np.ndarray:
    """Least cost at which the loss, linear between K points, is the target; NaN if it never is."""
    out = np.full(len(target_S), np.nan)
    for s, target in enumerate(target_S):
        order = np.argsort(cost_KS[:, s], kind="stable")
        cost_K, loss_K = cost_KS[order, s], loss_KS[order, s]
        reached = np.flatnonzero(loss_K <= target)
        if not len(reached):
            continue
        k = reached[0]
        if k == 0:
            out[s] = cost_K[0]
        else:
            share = (loss_K[k - 1] - target) / (loss_K[k - 1] - loss_K[k])
            out[s] = cost_K[k - 1] + share * (cost_K[k] - cost_K[k - 1])
    return out
