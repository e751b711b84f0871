"""Decoding in slots: against a plain account of exits, and against itself in other orders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.adaptive import slots as verbs
from looped_jax.adaptive.engine import Engine, Request, Size
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.prefix import prefill
from looped_jax.adaptive.rule import Rule
from looped_jax.evaluation.exits.running import keeping
from looped_jax.generation import decoding
from looped_jax.generation.sampling import Chooser, Sampling
from looped_jax.model.cache import KeysValues
from looped_jax.model.frozen import FrozenModel
from tests.model.tiny import SANDWICH, random_params, tiny

R, CAPACITY, BUCKET = 4, 16, 8
NEW = 5
MODEL = tiny(**SANDWICH | {"core_layers": 1})
PARAMS = random_params(MODEL)
LOOKS = Rule.parse("change:0").looks
NEVER, SOME = (Exits(np.float32(threshold), np.int32(R)) for threshold in (-1.0, 0.6))
GREEDY, HOT = Sampling(temperature=0.0), Sampling(temperature=1.0)
NO_END = -1
PROMPTS = [np.random.default_rng(i).integers(0, 40, size).astype(np.int32)
           for i, size in enumerate((3, 1, 7, 5, 2))]  # fmt: skip


def drawn_by(
    slots, boundary, exits=SOME, sampling=HOT, order=(0, 1, 2, 3, 4), choose=None, knobs=None
):
    """{prompt: its tokens, loops and nats}, drawn with the prompts in this order."""
    keys = sampling.keys(range(len(PROMPTS)))
    engine = Engine(
        MODEL, PARAMS, LOOKS, exits, Size(slots, boundary, R, CAPACITY, BUCKET),
        choose or Chooser(MODEL.vocab_size), sampling.knobs() if knobs is None else knobs, NO_END,
    )  # fmt: skip
    requests = [Request(PROMPTS[i], NEW, keys[i]) for i in order]
    found = {i: [] for i in order}
    for drawn in engine.run(requests):
        found[order[drawn.request]].append((drawn.token, drawn.loops, drawn.nats))
    return {i: [np.array(field) for field in zip(*found[i], strict=True)] for i in order}


@functools.lru_cache(maxsize=1)
def reference():
    return drawn_by(3, 2)


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "temperature 1"])
def test_a_threshold_that_never_fires_is_decoding_in_step(sampling):
    found = drawn_by(3, 2, NEVER, sampling)
    choose = jax.jit(Chooser(MODEL.vocab_size).__call__)
    keys, r = sampling.keys(range(len(PROMPTS))), jnp.int32(R)
    length = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    tokens = np.zeros((len(PROMPTS), BUCKET), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    logits, cache = decoding.prefill(MODEL, R, CAPACITY)(PARAMS, tokens, length, keys, r)
    for i in range(NEW):
        token = np.asarray(choose(logits, cache.length, keys, sampling.knobs()))
        assert token.tolist() == [int(found[row][0][i]) for row in range(len(PROMPTS))]
        logits, cache = decoding.decode(MODEL, R)(PARAMS, cache, token, keys, r)
    assert all((loops == R).all() for _, loops, _ in found.values())


@functools.partial(jax.jit, static_argnums=1)
def exits_and_nats(tokens_1T, length, key):
    """Exit loop (T,) and nats (T − 1,) of a whole text whose tokens all loop in step."""
    frozen = FrozenModel(MODEL, PARAMS)
    input_BTD = frozen.prelude(frozen.embed(tokens_1T))
    state = frozen.initial_state(input_BTD, keys_B=key[None])
    zeros = jnp.zeros((1, MODEL.core_layers, 1, MODEL.heads, length, MODEL.head_dim))
    shown, loops = KeysValues(zeros, zeros), jnp.zeros((1, length), jnp.int32)
    for index in range(R):
        new, shown = frozen.recur(state, input_BTD, index, keeping(shown, loops > 0))
        unit = lambda h: h / jnp.linalg.norm(h, axis=-1, keepdims=True)
        # The unit of a start of zeros has no direction; here every start is noise.
        change = jnp.linalg.norm(unit(new) - unit(state), axis=-1)
        state = jnp.where((loops > 0)[..., None], state, new)
        exits = (change <= SOME.threshold) | (index + 1 == R)
        loops = jnp.where((loops == 0) & exits, index + 1, loops)
    log_p = jax.nn.log_softmax(frozen.readout(frozen.coda(state)))[0]
    return loops[0], -jnp.take_along_axis(log_p[:-1], tokens_1T[0, 1:, None], 1)[:, 0]


def test_decoding_is_scoring_of_the_text_that_it_made():
    found, keys = reference(), HOT.keys(range(len(PROMPTS)))
    seen = []
    for row, (tokens, loops, nats) in found.items():
        text = np.concatenate([PROMPTS[row], tokens]).astype(np.int32)
        padded = np.zeros((1, CAPACITY), np.int32)
        padded[0, : len(text)] = text
        own_loops, own_nats = exits_and_nats(padded, CAPACITY, keys[row])
        at = slice(len(PROMPTS[row]) - 1, len(text) - 1)
        np.testing.assert_array_equal(loops, own_loops[at])
        np.testing.assert_allclose(nats, own_nats[at], atol=1e-5)
        seen += loops.tolist()
    assert len(set(seen)) >= 3  # tokens really exit at different loops


@pytest.mark.parametrize(("slots", "boundary"), [(1, 1), (5, 5)])
def test_order_and_number_of_slots_change_nothing(slots, boundary):
    other = drawn_by(slots, boundary, order=[4, 2, 0, 3, 1])
    for row, (tokens, loops, nats) in reference().items():
        np.testing.assert_array_equal(other[row][0], tokens)
        np.testing.assert_array_equal(other[row][1], loops)
        np.testing.assert_allclose(other[row][2], nats, atol=1e-5)


def test_prompts_do_not_see_each_other():
    keys = HOT.keys(range(2))
    tokens = np.zeros((2, BUCKET), np.int32)
    length = np.array([7, 5], np.int32)
    tokens[0, :7], tokens[1, :5] = PROMPTS[2], PROMPTS[3]
    run = prefill(MODEL, LOOKS, R)
    together = run(PARAMS, tokens, length, keys, SOME)
    for row in range(2):
        one = slice(row, row + 1)
        alone = run(PARAMS, tokens[one], length[one], keys[one], SOME)
        np.testing.assert_array_equal(alone.loops[0], together.loops[row])
        core = lambda prefix, at, n=length[row]: prefix.stacks["core"].key[:, :, at, :, :n]
        np.testing.assert_allclose(core(alone, 0), core(together, row), atol=1e-5)
    # Beyond its exit a token shows what it showed there.
    loops_T = np.asarray(together.loops[0, :7])
    at, exit_ = int(np.argmin(loops_T)), int(loops_T.min())
    assert exit_ < R
    key = together.stacks["core"].key[:, :, 0, :, at]
    np.testing.assert_array_equal(key[exit_ - 1], key[R - 1])


class Forced:
    """Draws the token that a table has for its position, or the most likely one beyond it."""

    def __call__(self, logits_BV, position_B, keys_B, table_T):
        forced_B = table_T[jnp.minimum(position_B, table_T.shape[0] - 1)]
        return jnp.where(forced_B < 0, jnp.argmax(logits_BV, -1), forced_B).astype(jnp.int32)


def test_a_prompt_in_the_cache_is_the_prompt_forced_through_slots(monkeypatch):
    forced, whole = Forced(), PROMPTS[2]
    table = np.full(CAPACITY, -1, np.int32)
    table[: len(whole)] = whole
    through_cache = drawn_by(3, 2, order=[2], choose=forced, knobs=table)[2]
    monkeypatch.setitem(globals(), "PROMPTS", [whole[:1]])
    monkeypatch.setitem(globals(), "NEW", len(whole) - 1 + NEW)
    # Its start from noise is that of row 2 of the batch, whose seed is 2.
    own = Sampling(seed=2)
    through_slots = drawn_by(3, 2, SOME, own, order=[0], choose=forced, knobs=table)[0]
    np.testing.assert_array_equal(through_slots[0][: len(whole) - 1], whole[1:])
    for cached, slotted in zip(through_cache, through_slots, strict=True):
        np.testing.assert_allclose(cached, slotted[len(whole) - 1 :], atol=1e-5)


def test_one_program_for_thresholds_depths_and_refills():
    choose = Chooser(MODEL.vocab_size)
    reference()
    drawn_by(3, 2, Exits(np.float32(0.3), np.int32(3)), Sampling(seed=3, top_k=4))
    program, insert = verbs.generate(MODEL, LOOKS, 2, choose, NO_END), verbs.insert(MODEL)
    of_insert = insert._cache_size()
    drawn_by(3, 2, Exits(np.float32(0.1), np.int32(4)), Sampling(seed=3, top_k=4))
    assert program._cache_size() == 1
    assert insert._cache_size() == of_insert
    slots = verbs.idle_slots(MODEL, LOOKS, 3, R, CAPACITY, None)
    arguments = (np.int32(8), np.int32(4), np.ones(3, bool), SOME, HOT.knobs())
    memory = program.lower(PARAMS, slots, *arguments).compile().memory_analysis()
    cache = sum(leaf.nbytes for leaf in jax.tree.leaves(slots.stacks))
    assert memory.alias_size_in_bytes >= cache  # the cache is updated in place
