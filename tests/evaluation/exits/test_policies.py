"""When policies let tokens go, and which thresholds they are tried with."""

import itertools

import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.evaluation.exits.policies import (
    POLICIES,
    argmax_changes,
    choose,
    costs_per_token,
    exit_loops,
    shown_threshold,
    signals_of,
    thresholds_of,
)
from looped_jax.evaluation.scored.trajectory import Loops
from looped_jax.model import accounting
from tests.evaluation.conftest import elastic

R, N = 6, 400


def loops_of(seed=0):
    rng = np.random.default_rng(seed)
    positive = lambda: np.exp(rng.normal(size=(R, N)) - np.arange(R)[:, None]).astype(np.float32)
    fields = {name: positive() for name in Loops._fields}
    fields["kl"][0] = np.inf
    fields["kl_to_last"][-1] = 0
    return Loops(**fields | {"argmax": rng.integers(0, 3, (R, N))})


RECORDED = {name: loops_of(seed).entropy for seed, name in enumerate(("change", "accel", "probe"))}


def test_tokens_exit_at_the_first_loop_that_allows_it():
    signal = np.array([[5.0, 1.0, 9.0], [1.0, 0.5, 9.0], [0.1, 9.0, 9.0]])
    np.testing.assert_array_equal(exit_loops(signal, 1.0), [2, 1, 3])
    np.testing.assert_array_equal(exit_loops(signal, 0.0), [3, 3, 3])
    np.testing.assert_array_equal(exit_loops(signal, np.inf), [1, 1, 1])


def test_lower_thresholds_never_exit_earlier():
    loops = loops_of()
    signals = signals_of(loops, RECORDED)
    for policy in POLICIES.values():
        signal = signals[policy.signal]
        exits = [exit_loops(signal, x) for x in (1e9, 1.0, 0.1, -0.5, -2.0, -1e9)]
        for earlier, later in itertools.pairwise(exits):
            assert (later >= earlier).all(), policy.name
        assert (exits[-1] == R).all()


def test_kl_cannot_let_go_before_the_second_loop():
    loops = loops_of()
    assert exit_loops(signals_of(loops, RECORDED)["kl"], 1e9).min() == 2


def test_signals_against_plain_loops():
    loops = loops_of()
    signals = signals_of(loops, RECORDED)
    for n in range(N):
        run = 0
        for i in range(R):
            run = run + 1 if i and loops.argmax[i, n] == loops.argmax[i - 1, n] else 0
            assert signals["argmax_run"][i, n] == -run
            later = loops.argmax[i:, n]
            changes = (later[1:] != later[:-1]).any()
            assert argmax_changes(loops.argmax)[i, n] == changes if n < 5 else True
            assert signals["argmax_changes"][i, n] == changes
            assert signals["kl_to_last_ahead"][i, n] == loops.kl_to_last[i:, n].max()
            assert signals["loop"][i, n] == -(i + 1)


def test_calibrated_thresholds_spread_over_the_depths():
    signal = RECORDED["change"]
    thresholds = thresholds_of(POLICIES["change"], (), signal)
    depths = [exit_loops(signal, x).mean() for x in thresholds]
    assert sorted(depths) == depths
    np.testing.assert_allclose(depths, [1.5, 2.1, 3.0, 4.2], atol=0.15)


def test_other_thresholds():
    signal = np.zeros((R, N))
    depths = thresholds_of(POLICIES["uniform"], (), signal)
    assert [shown_threshold(POLICIES["uniform"], x) for x in depths] == [1, 2, 3, 4, 5, 6]
    runs = thresholds_of(POLICIES["argmax"], (), signal)
    assert [shown_threshold(POLICIES["argmax"], x) for x in runs] == [1, 2, 3, 4, 5]
    assert thresholds_of(POLICIES["kl"], (0.1, 1.0), signal) == [1.0, 0.1]
    assert thresholds_of(POLICIES["oracle_argmax"], (), signal) == [0.0]


def test_the_parts_of_the_cost_add_up_to_the_forward_pass():
    model = elastic()
    costs = costs_per_token(model, 16)
    for depth in (1, 5):
        total = costs["prelude"] + depth * costs["recurrence"] + costs["readout"]
        assert total == accounting.forward_flops_per_token(model, 16, depth)
    kl = POLICIES["kl"].test_flops_per_token(model, 16)
    assert kl == costs["readout"] + (2 * model.width + 8) * model.vocab_size  # its second head
    assert POLICIES["probe"].test_flops_per_token(model, 16) == 2 * model.width
    assert POLICIES["oracle_kl"].test_flops_per_token(model, 16) == 0


def test_all_policies_that_have_something_to_decide():
    assert [policy.name for policy in choose((), 8)] == list(POLICIES)
    assert {policy.name for policy in choose((), 2)} == set(POLICIES) - {
        "kl", "second_order", "argmax",
    }  # fmt: skip
    assert [policy.name for policy in choose(("kl", "uniform"), 3)] == ["kl", "uniform"]


@pytest.mark.parametrize(
    ("names", "recurrences", "message"),
    [
        (("kl", "oracel"), 8, r"policy 'oracel'; allowed: uniform, kl, probe"),
        (("kl",), 2, r"policy 'kl' first tests after loop 2; allowed with 2 recurrences"),
    ],
)
def test_errors(names, recurrences, message):
    with pytest.raises(UserError, match=message):
        choose(names, recurrences)
