"""Decoding with a cache gives the logits of the model without one, at every depth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.generation import caches
from looped_jax.generation.decoding import decode, prefill
from looped_jax.model.cache import empty as cache_of
from looped_jax.model.frozen import FrozenModel
from looped_jax.model.lm import LoopedLM
from tests.adaptive.plain import keeping
from tests.model.tiny import INJECTIONS, READOUT, SANDWICH, random_params, tiny, with_injection

# The whole stack stands around two of the injections; the others compile faster without.
BARE = {"prelude_layers": 0, "coda_layers": 0}
FAMILIES = {
    name: with_injection(name, **({} if name in ("linear", "hyperconnect") else BARE))
    for name in INJECTIONS
} | {
    "no_loop": with_injection(
        "passthrough", prelude_layers=0, core_layers=3, coda_layers=0, recurrences=1
    ),
    "sandwich": tiny(**SANDWICH),
    "readout": tiny(**READOUT),
    "readout_raw": tiny(**READOUT, **{"readout_norm": "none"}),
}
LENGTHS = np.array([5, 2, 7], np.int32)
TOTAL = 10


def tokens_of(model, rows=3):
    return np.random.default_rng(1).integers(0, model.vocab_size, (rows, TOTAL)).astype(np.int32)


def row_keys(rows=3):
    return jax.vmap(jax.random.key)(jnp.arange(rows, dtype=jnp.uint32))


@functools.lru_cache(maxsize=8)
def uncached_fn(model):
    def run(params, tokens_BT, keys_B, recurrences):
        frozen = FrozenModel(model, params)
        state = frozen.initial_state(frozen.prelude(frozen.embed(tokens_BT)), keys_B=keys_B)
        return LoopedLM(model).apply({"params": params}, tokens_BT, recurrences, state)

    return jax.jit(run)


def cached_logits(
    model, params, tokens_BT, lengths, keys_B, recurrences, slots, bucket=8, capacity=12
):
    """Logits (B, steps, V) after the prompts and after each token that is put in behind them."""
    rows = np.arange(len(lengths))
    prompts = np.where(np.arange(bucket)[None] < lengths[:, None], tokens_BT[:, :bucket], 39)
    r = jnp.int32(recurrences)
    logits, cache = prefill(model, slots, capacity)(params, prompts, lengths, keys_B, r)
    collected = [logits]
    for step in range(TOTAL - max(lengths)):
        token_B = tokens_BT[rows, lengths + step]
        logits, cache = decode(model, slots)(params, cache, token_B, keys_B, r)
        collected.append(logits)
    np.testing.assert_array_equal(cache.length, lengths + TOTAL - max(lengths))
    return np.stack(collected, axis=1)


def expected_logits(logits_BTV, lengths):
    steps = TOTAL - max(lengths) + 1
    at = (lengths - 1)[:, None] + np.arange(steps)[None]
    return np.asarray(logits_BTV)[np.arange(len(lengths))[:, None], at]


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_logits_equal_uncached_logits(family):
    model = FAMILIES[family]
    params, tokens, keys = random_params(model), tokens_of(model), row_keys()
    deepest = model.recurrences if model.lanes or family == "no_loop" else 5
    for recurrences in range(1, deepest + 1):
        reference = uncached_fn(model)(params, tokens, keys, jnp.int32(recurrences))
        actual = cached_logits(model, params, tokens, LENGTHS, keys, recurrences, slots=deepest)
        expected = expected_logits(reference, LENGTHS)
        scale = np.abs(expected).max()
        assert np.abs(actual - expected).max() <= 1e-5 * scale, recurrences
    # The model is deep enough to tell depths apart.
    if deepest > 1:
        other = uncached_fn(model)(params, tokens, keys, jnp.int32(1))
        assert np.abs(np.asarray(reference) - np.asarray(other)).max() > 1e-2 * scale


@pytest.mark.parametrize("family", ["sandwich", "hyperconnect"])
def test_rows_do_not_see_each_other(family):
    """In the programs of the test above, which one row alone would not share."""
    model = FAMILIES[family]
    params, tokens, keys = random_params(model), tokens_of(model), row_keys()
    deepest = 3 if model.lanes else 5
    run = lambda tokens: cached_logits(model, params, tokens, LENGTHS, keys, 3, slots=deepest)
    together = run(tokens)
    for row in range(len(LENGTHS)):
        is_row = np.arange(len(LENGTHS))[:, None] == row
        others = np.where(is_row, tokens, (tokens + 1) % model.vocab_size)
        np.testing.assert_array_equal(run(others)[row], together[row])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sandwich", "hyperconnect"])
def test_a_batch_equals_its_rows_alone(family):
    model = FAMILIES[family]
    params, tokens, keys = random_params(model), tokens_of(model), row_keys()
    together = cached_logits(model, params, tokens, LENGTHS, keys, 3, slots=3)
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        alone = cached_logits(model, params, tokens[one], LENGTHS[one], keys[one], 3, slots=4)
        np.testing.assert_allclose(together[row], alone[0, : together.shape[1]], atol=2e-5)


def test_the_last_recurrence_alone():
    """What is kept is what an exited token shows to others: the two routes agree."""
    model = FAMILIES["sandwich"]
    params, tokens, keys = random_params(model), tokens_of(model), row_keys()
    length, R = 6, 3
    r = jnp.int32(R)
    lengths = np.full(len(tokens), length, np.int32)
    logits, cache = prefill(model, 1, TOTAL)(params, tokens[:, :length], lengths, keys, r)
    exact = uncached_fn(model)(params, tokens, keys, r)
    np.testing.assert_allclose(logits, exact[:, length - 1], atol=2e-5)
    logits, _ = decode(model, 1)(params, cache, tokens[:, length], keys, r)

    @jax.jit
    def plainly(params, seen):
        frozen = FrozenModel(model, params)
        input_BTD = frozen.prelude(frozen.embed(seen))
        start = frozen.initial_state(input_BTD, keys_B=keys)
        shown = cache_of(model, 1, len(seen), length + 1)["core"]

        def run(shown, exited_BT):
            recur = lambda i, carried: frozen.recur(
                carried[0], input_BTD, i, keeping(carried[1], exited_BT)
            )
            return jax.lax.fori_loop(0, R, recur, (start, shown))

        nobody = jnp.zeros(seen.shape, bool)
        earlier = nobody.at[:, :length].set(True)
        settled, shown = run(shown, nobody)  # the prompt, all tokens together
        state, _ = run(shown, earlier)  # the new token, against what the last recurrence showed
        state = jnp.where(earlier[..., None], settled, state)
        return frozen.readout(frozen.coda(state))[:, length]

    expected = plainly(params, tokens[:, : length + 1])
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert np.abs(np.asarray(expected - exact[:, length])).max() > 1e-2


@pytest.mark.parametrize(("kind", "slots"), [("every_recurrence", 3), ("last_recurrence", 1)])
def test_memory_is_what_it_is_said_to_be(kind, slots):
    model = FAMILIES["linear"]
    assert caches.count_kept(kind, 3) == slots
    cache = caches.empty(model, slots, batch=2, capacity=12)
    n_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(cache.stacks))
    assert caches.count_bytes(model, slots, 2, 12) == n_bytes
    layers = 2 * slots + 2
    assert n_bytes == 2 * layers * 2 * 12 * model.width * 4
    line = caches.describe(model, kind, slots, 2, 12)
    assert f"cache {kind}: {slots} recurrence" in line
    assert line.endswith(f"2 x 12 tokens: {n_bytes / 2**20:.3g} MiB")
