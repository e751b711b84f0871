"""Every signal against a plain account of it, in any layout, and the cost that is stated."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr

from looped_jax.adaptive.signals import SIGNALS, Probe
from tests.model.tiny import tiny

LOOPS, D, V = 4, 8, 12
MODEL = tiny(width=D, heads=1, head_dim=D, vocab_size=V)
RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(LOOPS + 1, 2, 3, D)).astype(np.float32)  # h_0 … h_R of (2, 3) tokens
TOKENS = RNG.integers(0, V, (2, 3))
HEAD = RNG.normal(size=(D, V)).astype(np.float32)
FITTED = {
    "probe": Probe(RNG.normal(size=D).astype(np.float32), np.float32(0.5)),
    "prior": RNG.uniform(1, 6, V).astype(np.float32),
}


def values(name, states, tokens):
    """The signal after every loop."""
    signal, fitted = SIGNALS[name], FITTED.get(name)
    memory = signal.init(fitted, jnp.asarray(tokens), jnp.asarray(states[0]), V)
    found = []
    for old, new in itertools.pairwise(states):
        value, memory = signal.step(lambda h: jnp.matmul(h, HEAD), fitted, old, new, memory)
        assert value.dtype == jnp.float32
        found.append(value)
    return np.stack(found)


def expected(name):
    u = STATES.astype(np.float64) / np.linalg.norm(STATES, axis=-1, keepdims=True)
    if name == "change":
        return np.linalg.norm(np.diff(u, axis=0), axis=-1)
    if name == "accel":
        return np.linalg.norm(np.diff(u, n=2, axis=0), axis=-1)
    if name == "probe":
        return STATES[1:] @ FITTED["probe"].weights + 0.5
    if name == "prior":
        return FITTED["prior"][TOKENS] / np.arange(1, LOOPS + 1)[:, None, None]
    p = np.exp(log_softmax(STATES[1:] @ HEAD, -1))
    return rel_entr(p[1:], p[:-1]).sum(-1)


@pytest.mark.parametrize("name", ["change", "accel", "probe", "head_kl", "prior"])
def test_a_signal_is_what_it_says(name):
    wanted = expected(name)
    found = values(name, STATES, TOKENS)[-len(wanted) :]
    assert LOOPS - len(wanted) == SIGNALS[name].first - 1  # loops that have no meaning yet
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SIGNALS)
def test_the_layout_of_the_tokens_does_not_matter(name):
    flat = values(name, STATES.reshape(LOOPS + 1, 6, D), TOKENS.reshape(6))
    np.testing.assert_array_equal(flat.reshape(LOOPS, 2, 3), values(name, STATES, TOKENS))


@pytest.mark.parametrize("name", ["change", "accel"])
def test_the_scale_of_the_state_does_not_matter(name):
    growing = STATES * np.float32(4.0) ** np.arange(LOOPS + 1)[:, None, None, None]
    np.testing.assert_allclose(
        values(name, growing, TOKENS), values(name, STATES, TOKENS), rtol=1e-5, atol=1e-6
    )


def test_a_start_from_zeros_has_no_direction():
    change, _ = SIGNALS["change"].step(None, None, jnp.zeros((1, D)), jnp.ones((1, D)), ())
    np.testing.assert_allclose(change, 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["change", "accel", "probe", "head_kl"])
def test_flops_are_what_the_compiler_counts(name):
    """Within the small change that fusing, square roots and casts make."""
    signal, fitted = SIGNALS[name], FITTED.get(name)
    states = jnp.zeros((64, D))
    memory = signal.init(fitted, jnp.zeros(64, int), states, V)
    step = lambda old, new, memory: signal.step(
        lambda h: jnp.matmul(h, HEAD), fitted, old, new, memory
    )
    counted = jax.jit(step).lower(states, states, memory).compile().cost_analysis()["flops"]
    assert signal.flops(MODEL) == pytest.approx(counted / 64, rel=0.35)
