"""The parts of a frozen model: they compose to the whole, and stand where their context says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model.attention import Context, causal_attention
from looped_jax.model.cache import KeysValues, appending, recording
from looped_jax.model.frozen import FrozenModel
from looped_jax.model.lm import LoopedLM
from tests.model.tiny import INJECTIONS, READOUT, SANDWICH, random_params, tiny, with_injection

FAMILIES = {name: with_injection(name) for name in INJECTIONS} | {
    "sandwich": tiny(**SANDWICH | {"initial_state": "zeros", "initial_state_std": 0.0}),
    "readout, remat": tiny(**READOUT, remat="layer"),
}
B, T, R = 2, 6, 3
TOKENS = np.random.default_rng(1).integers(0, 40, (B, T)).astype(np.int32)


def by_doors(model, params, tokens_BT):
    """Logits through inject, core and absorb, whose attention is brought along."""

    def attend(layer, q, k, v, calls):
        return causal_attention(q, k, v, "xla"), calls + layer + 1

    frozen = FrozenModel(model, params)
    plain = Context(jnp.arange(T)[None], attend, jnp.int32(0))
    input_BTD, _ = frozen.prelude(frozen.embed(tokens_BT), plain)
    state = frozen.initial_state(input_BTD)
    for index in range(R):
        y_BTD, calls = frozen.core(frozen.inject(state, input_BTD, index), plain)
        state = frozen.absorb(state, y_BTD, index)
    h_BTD, _ = frozen.coda(state, plain)
    return frozen.readout(h_BTD), calls


@pytest.mark.parametrize("family", FAMILIES)
def test_the_doors_are_the_model(family):
    model = FAMILIES[family]
    params = random_params(model)
    logits, calls = jax.jit(functools.partial(by_doors, model))(params, TOKENS)
    # Every layer of the core attended, each under its own number.
    assert calls == sum(range(1, model.core_layers + 1))
    expected = jax.jit(lambda p: LoopedLM(model).apply({"params": p}, TOKENS, R))(params)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    hidden = jax.jit(lambda p: FrozenModel(model, p).hidden(TOKENS, R))(params)
    readout = jax.jit(lambda p, h: FrozenModel(model, p).readout(h))(params, hidden)
    np.testing.assert_allclose(readout, expected, rtol=1e-5, atol=1e-5)


def test_a_token_behind_cached_ones_attends_as_in_its_text():
    """Rows of their own lengths and recurrences; one beyond the cache leaves nothing in it."""
    model = tiny()
    frozen = FrozenModel(model, random_params(model))
    x_BTD = jax.random.normal(jax.random.key(0), (B, T, model.width))
    empty = jnp.zeros((2, model.core_layers, B, model.heads, T + 1, model.head_dim))
    whole, cache = frozen.core(x_BTD, recording(KeysValues(empty, empty), 1, T, "xla"))
    np.testing.assert_array_equal(cache.key[0], 0)
    np.testing.assert_array_equal(cache.key[1, :, :, :, T], 0)

    at_B = jnp.array([3, 5])
    own_B1D = jnp.take_along_axis(x_BTD, at_B[:, None, None], axis=1)
    holes = jax.tree.map(lambda x: x.at[1, :, jnp.arange(B), :, at_B].set(jnp.nan), cache)
    for recurrence in (jnp.int32(1), jnp.array([1, 1])):
        found, filled = frozen.core(own_B1D, appending(holes, recurrence, at_B))
        np.testing.assert_allclose(found[:, 0], whole[jnp.arange(B), at_B], atol=1e-5)
        np.testing.assert_allclose(filled.value, cache.value, atol=1e-5)
    _, dropped = frozen.core(own_B1D, appending(cache, jnp.array([1, 2]), at_B))
    np.testing.assert_array_equal(dropped.key[:, :, 1], cache.key[:, :, 1])


def test_noise_depends_on_key_and_position_alone():
    model = tiny(**SANDWICH)
    frozen = FrozenModel(model, random_params(model))
    keys = jax.vmap(jax.random.key)(jnp.arange(2, dtype=jnp.uint32))
    x = jnp.zeros((2, 4, model.width))
    places = jnp.array([[0, 1, 2, 3], [2, 3, 4, 5]])
    noise = frozen.initial_state(x, places, keys)
    alone = frozen.initial_state(x[1:, :1], places[1:, 2:3], keys[1:])
    np.testing.assert_array_equal(noise[1, 2], alone[0, 0])
    other = frozen.initial_state(x[:1, :1], places[1:, 2:3], keys[:1])
    assert np.abs(np.asarray(other - alone)).max() > 0.1
    assert np.std(noise) == pytest.approx(0.4, rel=0.2)
    # Rows of a batch begin as the rows of seeds 0, 1, … do, so a longer or larger one changes none.
    unnamed = frozen.initial_state(jnp.zeros((3, 6, model.width)))
    np.testing.assert_array_equal(unnamed[:1, :4], noise[:1])
