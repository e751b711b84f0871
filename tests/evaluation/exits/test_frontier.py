"""Costs of exits, and comparisons at equal cost and at equal quality."""

import numpy as np
import pytest

from looped_jax.evaluation.exits.frontier import (
    Frontier,
    Point,
    cost_of_quality,
    flops_of_exits,
    interpolate,
)
from looped_jax.evaluation.exits.policies import POLICIES, costs_per_token
from looped_jax.evaluation.scored.bootstrap import Bootstrap
from looped_jax.evaluation.scored.windows import ScoredText
from tests.evaluation.conftest import elastic

MODEL, LENGTH, R = elastic(), 16, 5
COSTS = costs_per_token(MODEL, LENGTH)
LOOPS = np.array([1, 3, 2, 5])


def flops(policy, carry):
    return flops_of_exits(POLICIES[policy], carry, MODEL, LENGTH, R, LOOPS)


@pytest.mark.parametrize(
    ("carry", "loops_run"),
    [("carry", LOOPS), ("full_depth", [5, 5, 5, 5])],
)
@pytest.mark.parametrize("policy", ["kl", "probe", "oracle_kl"])
def test_a_token_costs_what_its_carry_makes_it_cost(policy, carry, loops_run):
    total, tests = flops(policy, carry)
    test = POLICIES[policy].test_flops_per_token(MODEL, LENGTH)
    # A look at the output of the exit loop is the output.
    looks = {
        "kl": LOOPS * test - COSTS["readout"],
        "probe": LOOPS * test,
        "oracle_kl": np.zeros(4),
    }[policy]
    np.testing.assert_allclose(tests, looks)
    ends = COSTS["prelude"] + COSTS["readout"]
    np.testing.assert_allclose(total, ends + np.asarray(loops_run) * COSTS["recurrence"] + looks)


def test_uniform_depth_costs_its_depth_under_every_carry():
    for carry in ("carry", "full_depth"):
        total, tests = flops("uniform", carry)
        np.testing.assert_array_equal(tests, 0)
        expected = COSTS["prelude"] + LOOPS * COSTS["recurrence"] + COSTS["readout"]
        np.testing.assert_allclose(total, expected)


def test_interpolation_of_each_column():
    cost = np.array([[1.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    loss = np.array([[5.0, 5.0], [3.0, 4.0], [2.0, 0.0]])
    np.testing.assert_allclose(interpolate(cost, loss, np.array([1.5, 4.0])), [4.0, 2.0])
    assert np.isnan(interpolate(cost, loss, np.array([0.5, 5.5]))).all()


def test_cost_of_quality():
    cost = np.array([[3.0, 3.0, 1.0, 1.0], [1.0, 1.0, 2.0, 2.0], [2.0, 2.0, 3.0, 3.0]])
    loss = np.array([[2.0, 2.0, 5.0, 5.0], [6.0, 6.0, 3.0, 3.0], [4.0, 4.0, 4.0, 4.0]])
    found = cost_of_quality(cost, loss, np.array([3.0, 6.0, 4.0, 2.9]))
    np.testing.assert_allclose(found, [2.5, 1.0, 1.5, np.nan])


def test_differences_to_uniform_depth_on_the_same_tokens():
    rng = np.random.default_rng(0)
    N, depths = 600, np.arange(1, 6)
    window = np.arange(N) // 10
    text = ScoredText(window, *[np.zeros(N, int)] * 4)
    hard = rng.random(N) < 0.3
    # Hard tokens gain 1 nat a loop until loop 4, easy ones nothing after the first.
    nats_at = lambda loop: 5 + rng_noise - np.where(hard, np.minimum(loop, 4), 1.0)
    rng_noise = rng.normal(size=N)

    def point(policy, loop, threshold):
        loop = np.broadcast_to(loop, N)
        total, tests = flops_of_exits(POLICIES[policy], "carry", MODEL, LENGTH, 5, loop)
        agrees = np.ones(N, bool)
        return Point(
            POLICIES[policy], "carry", threshold, loop, nats_at(loop), agrees, total, tests
        )

    points = [point("uniform", depth, -float(depth)) for depth in depths]
    points.append(point("change", np.where(hard, 4, 1), 0.1))
    frontier = Frontier(points, nats_at(5), Bootstrap(text, 200, 0))
    rows = frontier.to_json()
    for row in rows[:5]:
        assert row["against_uniform_at_equal_loops"]["value"] == pytest.approx(0, abs=1e-9)
    best = rows[-1]
    share = hard.mean()
    mean_loops = 1 + 3 * share
    assert best["threshold"] == 0.1
    assert best["mean_loops"]["value"] == pytest.approx(mean_loops)
    assert best["loss"]["value"] == pytest.approx(nats_at(4).mean())
    assert best["against_full_depth"]["value"] == pytest.approx(0, abs=1e-12)
    # Uniform depth gains `share` nats with each loop.
    expected = -share * (4 - mean_loops)
    difference = best["against_uniform_at_equal_loops"]
    assert difference["value"] == pytest.approx(expected)
    assert difference["ci95"][0] < expected < difference["ci95"][1] < 0

    uniform, change = frontier.at_equal_quality()
    assert uniform["loops_over_uniform"]["value"] == 1
    assert uniform["loops"]["value"] == pytest.approx(3.97)  # 99 % of the way from loop 1 to 4
    assert change["loops"]["value"] == pytest.approx(mean_loops)
    assert change["loops_over_uniform"]["value"] == pytest.approx(mean_loops / 3.97)
    assert change["share_reached"] == 1
