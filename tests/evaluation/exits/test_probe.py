"""The probe: fitted on the right labels, and as a logistic regression should be."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.adaptive.signals import Probe
from looped_jax.evaluation.exits.policies import argmax_changes
from looped_jax.evaluation.exits.probe import (
    features,
    fit_probe,
    logistic_regression,
    pair_sampler,
    ranking_quality,
)
from looped_jax.evaluation.exits.recorder import signal_recorder
from looped_jax.evaluation.scored.trajectory import loop_scorer
from looped_jax.evaluation.scored.windows import score
from tests.evaluation.conftest import WHOLE, elastic

R = 4


def test_it_finds_the_parameters_of_a_logistic_model():
    rng = np.random.default_rng(0)
    weights, bias = np.array([2.0, -1.0, 0.0]), 0.5
    x = rng.normal(size=(40_000, 3)) * [1.0, 3.0, 0.1] + [0.0, 5.0, 0.0]
    odds = x @ weights + bias
    label = rng.random(len(x)) < 1 / (1 + np.exp(-odds))
    probe = logistic_regression(x, label)
    # The penalty pulls a little towards zero.
    np.testing.assert_allclose(probe.weights[:2], weights[:2], rtol=0.06)
    assert ranking_quality(x @ probe.weights + probe.bias, label) > 0.99 * ranking_quality(
        odds, label
    )


def test_units_of_the_state_do_not_matter():
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(500, 4)), rng.random(500) < 0.3
    scale = np.array([1e-3, 1.0, 1e3, 7.0])
    a, b = logistic_regression(x, label), logistic_regression(x * scale, label)
    np.testing.assert_allclose(x @ a.weights + a.bias, (x * scale) @ b.weights + b.bias, atol=1e-3)


def test_one_class_or_a_constant_feature_is_no_obstacle():
    x = np.ones((50, 2))
    for label in (np.zeros(50, bool), np.arange(50) % 2 == 0):
        probe = logistic_regression(x, label)
        assert np.isfinite(probe.weights).all()
        assert np.isfinite(probe.bias)


def test_ranking_quality():
    label = np.array([True, True, False, False])
    assert ranking_quality(np.array([4.0, 3.0, 2.0, 1.0]), label) == 1.0
    assert ranking_quality(np.array([1.0, 2.0, 3.0, 4.0]), label) == 0.0
    assert ranking_quality(np.ones(4), label) == 0.5
    assert np.isnan(ranking_quality(np.ones(2), np.ones(2, bool)))


def test_pairs_carry_the_label_of_their_token_and_loop(trained):
    run = trained(elastic())
    tokens = run.data.validation.windows(np.arange(8) * 8, 9)
    mask = np.arange(8)[:, None] < np.array([[7] * 8])
    sampler = pair_sampler(run.run.model, R, 190, 24, run.mesh)
    drawn = [
        jax.device_get(sampler(run.params, tokens, mask, jnp.uint32(seed))) for seed in range(8)
    ]
    state_PF, label_P, counts_P = map(np.concatenate, zip(*drawn, strict=True))
    assert state_PF.shape == (8 * 190, run.run.model.width)
    assert 0 < (~counts_P).sum() < 8 * 50
    first = np.zeros(run.run.model.width, np.float32)
    first[0] = 1.0
    recorder = signal_recorder(run.run.model, ("probe",), R, run.mesh)
    loops, _ = loop_scorer(run.run.model, R, 24, run.mesh)(run.params, tokens, mask)
    recorded, _ = recorder(run.params, tokens, mask, Probe(first, np.float32(0)))
    first_RBT = np.asarray(recorded["probe"])
    changes_RN = argmax_changes(np.asarray(loops.argmax).reshape(R, -1))[:-1]
    # The probe that shows one component of the state finds the pair again.
    for state_F, label in zip(state_PF, label_P, strict=True):
        found = np.isclose(first_RBT.reshape(R, -1)[:-1], state_F[0], rtol=1e-5, atol=1e-6)
        assert label in changes_RN[found]
    assert 0 < label_P.mean() < 1


def test_few_pairs_are_all_taken_once(trained):
    run = trained(elastic())
    tokens = run.data.validation.windows(np.arange(8) * 8, 9)
    mask = np.arange(8)[:, None] < np.array([[7] * 8])
    pairs = (R - 1) * mask.size
    sampler = pair_sampler(run.run.model, R, pairs, 24, run.mesh)
    state_PF, _, counts_P = jax.device_get(sampler(run.params, tokens, mask, jnp.uint32(0)))
    assert counts_P.sum() == (R - 1) * mask.sum()
    assert len(np.unique(state_PF[:, 0])) > 0.9 * pairs  # only equal contexts have equal states


def test_lanes_lie_beside_each_other():
    lanes = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(features(lanes), np.concatenate([*lanes], axis=-1))
    np.testing.assert_array_equal(features(lanes[0]), lanes[0])


def test_the_fitted_probe_ranks_what_it_has_not_seen(trained):
    run = trained(elastic(**WHOLE))
    fitted = fit_probe(run, range(16), R)
    assert fitted.examples == (R - 1) * 16 * 8  # every pair once
    recorder = signal_recorder(run.run.model, ("probe",), R, run.mesh)
    recorded, _ = score(run, recorder, "", fitted.probe, windows=range(16, 32))
    loops, _ = score(run, loop_scorer(run.run.model, R, 24, run.mesh), "", windows=range(16, 32))
    label = argmax_changes(loops.argmax)[:-1]
    assert ranking_quality(recorded["probe"][:-1].ravel(), label.ravel()) > 0.5
