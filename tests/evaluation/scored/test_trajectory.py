"""Streamed measurements of loops equal those made in one piece, and hold few logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from looped_jax import parallel
from looped_jax.evaluation.scored.trajectory import depth_scorer, divergence, loop_scorer
from looped_jax.evaluation.scored.windows import score
from looped_jax.model.lm import LoopedLM
from looped_jax.training.validation import validation_loss
from tests.evaluation.conftest import WHOLE, elastic, some_tokens
from tests.model.tiny import random_params, with_injection

R = 4
MODELS = {
    "elastic": elastic(**WHOLE),
    "lanes": with_injection("hyperconnect", recurrences=R),
}


def one_device():
    return parallel.mesh_from_text("data:-1,fsdp:1,tensor:1", jax.devices()[:1])


def measure(model, chunk, mesh=None, shape=(2, 9)):
    mesh = mesh or one_device()
    tokens = some_tokens(model, shape)
    mask = np.ones((shape[0], shape[1] - 1), bool)
    with parallel.active(mesh):
        loops, _ = loop_scorer(model, R, chunk, mesh)(random_params(model), tokens, mask)
    return jax.device_get(loops), tokens


def in_one_piece(model, tokens):
    """(log-probabilities (R, B, T, V), states h_0 … h_R (R + 1, B, T, ·)), in float64."""

    @jax.jit
    def run(params):
        apply = lambda method, *args: LoopedLM(model).apply(
            {"params": params}, *args, method=method
        )
        x = apply("prelude", apply("embed", tokens[:, :-1]))
        states = [apply("initial_state", x)]
        states += [*apply("trajectory", states[0], x, R)]
        logits = [apply("readout", apply("coda", state)) for state in states[1:]]
        return jnp.stack(logits), jnp.stack(states)

    logits, states = (np.asarray(part, np.float64) for part in run(random_params(model)))
    if states.ndim == 5:  # lanes beside each other
        states = np.moveaxis(states, 1, 3).reshape(*states[:, 0].shape[:-1], -1)
    return logits - logsumexp(logits, -1, keepdims=True), states


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_measurements_equal_those_in_one_piece(model):
    loops, tokens = measure(model, chunk=5)
    log_p, states = in_one_piece(model, tokens)
    p = np.exp(log_p)
    close = lambda actual, expected: np.testing.assert_allclose(actual, expected, 2e-3, 1e-6)
    close(loops.nats, -np.take_along_axis(log_p, tokens[None, :, 1:, None], -1)[..., 0])
    close(loops.entropy, -(p * log_p).sum(-1))
    close(loops.kl[1:], (p[1:] * (log_p[1:] - log_p[:-1])).sum(-1))
    close(loops.kl_to_last, (p[-1:] * (log_p[-1:] - log_p)).sum(-1))
    np.testing.assert_array_equal(loops.argmax, log_p.argmax(-1))
    assert np.isinf(loops.kl[0]).all()

    norm = lambda x: np.linalg.norm(x, axis=-1)
    steps = np.diff(states, axis=0)
    close(loops.change, norm(steps) / norm(states[1:]))
    close(loops.second_order[1:], norm(np.diff(steps, axis=0)) / norm(states[2:]))
    assert np.isinf(loops.second_order[0]).all()
    cosine = (states[1:] * states[:-1]).sum(-1)[1:] / (norm(states[1:]) * norm(states[:-1]))[1:]
    close(loops.angle[1:], np.arccos(np.clip(cosine, -1, 1)))
    if model.initial_state == "zeros":
        assert np.isinf(loops.angle[0]).all()


def test_small_angles_and_divergences_are_seen():
    log_p = np.log(np.array([0.7, 0.2, 0.1]))
    for size in (1e-1, 1e-3, 1e-5):
        log_q = np.log(np.exp(log_p) + size * np.array([1.0, -0.5, -0.5]) * 0.1)
        exact = np.sum(np.exp(log_p) * (log_p - log_q))
        found = divergence(jnp.float32(log_p), jnp.float32(log_q))
        # float32 logits move the last by 1e-7, so what is asked for is the order of 1e-12.
        np.testing.assert_allclose(found, exact, rtol=0.05)
    assert divergence(jnp.float32(log_p), jnp.float32(log_p)) == 0
    certain = jnp.float32([0.0, -200.0, -200.0])
    np.testing.assert_allclose(divergence(jnp.float32(log_p), certain), 59.2, rtol=1e-2)
    np.testing.assert_allclose(divergence(certain, jnp.float32(log_p)), -np.log(0.7), rtol=1e-5)


def test_eight_devices_measure_the_same():
    model = elastic()
    mesh = parallel.mesh_from_text("data:4,fsdp:2,tensor:1")
    split, _ = measure(model, 16, mesh, shape=(8, 9))
    whole, _ = measure(model, 16, shape=(8, 9))
    for a, b in zip(split, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_logits_exist_for_a_chunk_of_tokens_and_three_loops_at_most():
    model, mesh = elastic(vocab_size=4096), one_device()
    B, T, chunk, loops = 8, 16, 16, 12
    tokens = jax.ShapeDtypeStruct((B, T + 1), jnp.int32)
    mask = jax.ShapeDtypeStruct((B, T), bool)
    with parallel.active(mesh):
        lowered = loop_scorer(model, loops, chunk, mesh).lower(random_params(model), tokens, mask)
    held = lowered.compile().memory_analysis().temp_size_in_bytes
    of_one_loop = B * T * model.vocab_size * 4
    assert held < of_one_loop * 2
    assert of_one_loop * loops > 6 * held


def test_depths_equal_the_validation_loss(trained):
    model = elastic()
    run = trained(model)
    depths = (1, 3, 6)
    nats_RN, text = score(run, depth_scorer(model, depths, 24, run.mesh), "")
    for row, depth in zip(nats_RN, depths, strict=True):
        expected = validation_loss(
            model, run.params, run.data, run.mesh, sequence_length=8, batch_size=8, max_windows=0,
            chunk=24, recurrences=depth,
        )  # fmt: skip
        assert len(text) == expected.tokens == len(run.data.validation) - 1
        np.testing.assert_allclose(row.mean(), expected.loss, rtol=1e-5)
