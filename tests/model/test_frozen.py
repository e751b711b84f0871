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
from tests.model.tiny import READOUT, SANDWICH, random_params, tiny, with_injection

BARE = {"prelude_layers": 0, "coda_layers": 0}
FAMILIES = {
    "linear": tiny(),
    "hyperconnect": with_injection("hyperconnect", **BARE),
    "sandwich": tiny(**SANDWICH | BARE | {"initial_state": "zeros", "initial_state_std": 0.0}),
    "learned positions, remat": tiny(**READOUT, remat="layer"),
}
B, T, R = 2, 6, 2
TOKENS = np.random.default_rng(1).integers(0, 40, (B, T)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def by_doors(model, params):
    """Logits through inject, core and absorb, whose attention is brought along; its layers."""

    def attend(layer, q, k, v, seen):
        return causal_attention(q, k, v, "xla"), seen + layer + 1

    frozen = FrozenModel(model, params)
    own = Context(jnp.arange(T)[None], attend, jnp.int32(0))
    input_BTD, _ = frozen.prelude(frozen.embed(TOKENS), own)

    def recur(index, carried):
        y_BTD, seen = frozen.core(frozen.inject(carried[0], input_BTD, index), own)
        return frozen.absorb(carried[0], y_BTD, index), seen

    start = (frozen.initial_state(input_BTD), jnp.int32(0))
    state, seen = jax.lax.fori_loop(0, R, recur, start)
    h_BTD, _ = frozen.coda(state, own)
    return frozen.readout(h_BTD), seen


@functools.partial(jax.jit, static_argnums=0)
def by_the_whole(model, params):
    frozen = FrozenModel(model, params)
    own = LoopedLM(model).apply({"params": params}, TOKENS, R)
    return own, frozen.readout(frozen.hidden(TOKENS, R))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_doors_are_the_model(family):
    model = FAMILIES[family]
    params = random_params(model)
    logits, seen = by_doors(model, params)
    # Every layer of the core attended, each under its own number.
    assert seen == sum(range(1, model.core_layers + 1))
    expected, of_hidden = by_the_whole(model, params)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_hidden, expected, rtol=1e-5, atol=1e-5)


def test_a_token_behind_cached_ones_attends_as_in_its_text():
    """Rows of their own lengths and recurrences; one beyond the cache leaves nothing in it."""
    model = tiny()
    x_BTD = jax.random.normal(jax.random.key(0), (B, T, model.width))
    at_B = jnp.array([3, 5])
    zeros = jnp.zeros((2, model.core_layers, B, model.heads, T + 1, model.head_dim))

    @jax.jit
    def run(params):
        core = FrozenModel(model, params).core
        whole, cache = core(x_BTD, recording(KeysValues(zeros, zeros), 1, T, "xla"))
        own = jnp.take_along_axis(x_BTD, at_B[:, None, None], axis=1)
        holes = jax.tree.map(lambda x: x.at[1, :, jnp.arange(B), :, at_B].set(jnp.nan), cache)
        single = [
            core(own, appending(holes, recurrence, at_B))
            for recurrence in (jnp.int32(1), jnp.array([1, 1]))
        ]
        return whole, cache, single, core(own, appending(cache, jnp.array([1, 2]), at_B))[1]

    whole, cache, single, beyond = run(random_params(model))
    np.testing.assert_array_equal(cache.key[0], 0)
    np.testing.assert_array_equal(cache.key[1, :, :, :, T], 0)
    for found, filled in single:
        np.testing.assert_allclose(found[:, 0], whole[jnp.arange(B), at_B], atol=1e-5)
        np.testing.assert_allclose(filled.value, cache.value, atol=1e-5)
    np.testing.assert_array_equal(beyond.key[:, :, 1], cache.key[:, :, 1])


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
