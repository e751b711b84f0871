"""Decoding in slots: against scoring of what it wrote, and against itself in other orders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.adaptive import prefix
from looped_jax.adaptive import slots as verbs
from looped_jax.adaptive.engine import Engine, Request, Size
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.prefix import prefill
from looped_jax.generation import decoding
from looped_jax.generation.sampling import Chooser, Sampling
from tests.adaptive.plain import LOOKS, MODEL, PARAMS, SCORER, B, T

R, BUCKET = 4, 8
NEW = 5
NEVER, SOME = (Exits(np.float32(threshold), np.int32(R)) for threshold in (-1.0, 0.8))
GREEDY, HOT = Sampling(temperature=0.0), Sampling(temperature=1.0)
NO_END = -1
FREE = np.full(T, -1, np.int32)
PROMPTS = [np.random.default_rng(i).integers(0, 40, size).astype(np.int32)
           for i, size in enumerate((3, 1, 7, 5, 2))]  # fmt: skip


class Forced:
    """Draws the token that a table has for its position, or where it has −1 as `Chooser` does."""

    def __init__(self):
        self.choose = Chooser(MODEL.vocab_size)

    def __call__(self, logits_BV, position_B, keys_B, knobs):
        table_T, knobs = knobs
        forced_B = table_T[jnp.minimum(position_B, T - 1)]
        free_B = self.choose(logits_BV, position_B, keys_B, knobs)
        return jnp.where(forced_B < 0, free_B, forced_B).astype(jnp.int32)


CHOOSE = Forced()


def drawn_by(
    slots, boundary, exits=SOME, sampling=HOT, order=range(5), table=FREE, prompts=PROMPTS, new=NEW
):
    """{prompt: its tokens, loops and nats}, drawn with the prompts in this order."""
    keys = sampling.keys(range(len(prompts)))
    engine = Engine(
        MODEL, PARAMS, LOOKS, exits, Size(slots, boundary, R, T, BUCKET), CHOOSE,
        (table, sampling.knobs()), NO_END,
    )  # fmt: skip
    requests = [Request(prompts[i], new, keys[i]) for i in order]
    found = {i: [] for i in order}
    for drawn in engine.run(requests):
        found[order[drawn.request]].append((drawn.token, drawn.loops, drawn.nats))
    return {i: [np.array(field) for field in zip(*found[i], strict=True)] for i in order}


@functools.lru_cache(maxsize=1)
def reference():
    return drawn_by(3, 2)


def prompts_together():
    """(tokens (4, BUCKET), lengths) of prompts that are run together."""
    tokens = np.zeros((4, BUCKET), np.int32)
    for row, prompt in enumerate(PROMPTS[:4]):
        tokens[row, : len(prompt)] = prompt
    return tokens, np.array([len(prompt) for prompt in PROMPTS[:4]], np.int32)


def test_a_threshold_that_never_fires_is_decoding_in_step():
    choose = jax.jit(Chooser(MODEL.vocab_size).__call__)
    r = jnp.int32(R)
    tokens, length = prompts_together()
    for sampling in (GREEDY, HOT):
        found = drawn_by(3, 2, NEVER, sampling)
        keys = sampling.keys(range(4))
        logits, cache = decoding.prefill(MODEL, R, T)(PARAMS, tokens, length, keys, r)
        for i in range(NEW):
            token = np.asarray(choose(logits, cache.length, keys, sampling.knobs()))
            assert token.tolist() == [int(found[row][0][i]) for row in range(4)]
            logits, cache = decoding.decode(MODEL, R)(PARAMS, cache, token, keys, r)
        assert all((loops == R).all() for _, loops, _ in found.values())


def test_decoding_is_scoring_of_the_text_that_it_made():
    found, keys = reference(), HOT.keys(range(len(PROMPTS)))
    forced, seen = np.zeros((B, T), np.int32), []
    for rows in ([0, 1, 2], [3, 4, 4]):
        tokens, length = np.zeros((B, T + 1), np.int32), np.zeros(B, np.int32)
        for at, row in enumerate(rows):
            text = np.concatenate([PROMPTS[row], found[row][0]])
            tokens[at, : len(text)], length[at] = text, len(text) - 1
        scored = jax.device_get(SCORER(PARAMS, tokens, length, keys[np.array(rows)], SOME, forced))
        for at, row in enumerate(rows):
            _, loops, nats = found[row]
            drawn = slice(len(PROMPTS[row]) - 1, length[at])
            np.testing.assert_array_equal(loops, scored.loops[at, drawn])
            np.testing.assert_allclose(nats, scored.nats[at, drawn], atol=1e-5)
            seen += loops.tolist()
    assert len(set(seen)) >= 3  # tokens really exit at different loops


@pytest.mark.parametrize(
    ("slots", "boundary"),
    [
        (5, 5),
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(3, 1, marks=pytest.mark.slow),
    ],
)
def test_order_and_number_of_slots_change_nothing(slots, boundary):
    other = drawn_by(slots, boundary, order=[4, 2, 0, 3, 1])
    for row, (tokens, loops, nats) in reference().items():
        np.testing.assert_array_equal(other[row][0], tokens)
        np.testing.assert_array_equal(other[row][1], loops)
        np.testing.assert_allclose(other[row][2], nats, atol=1e-5)


def test_prompts_do_not_see_each_other():
    keys, (tokens, length) = HOT.keys(range(4)), prompts_together()
    run = prefill(MODEL, LOOKS, R)
    together = run(PARAMS, tokens, length, keys, SOME)
    core = lambda prefix, row: prefix.stacks["core"].key[:, :, row, :, : length[row]]
    for row in (2, 3):
        is_row = np.arange(4) == row
        others = np.where(is_row[:, None], tokens, 7), np.where(is_row, length, 2)
        alone = run(PARAMS, others[0], others[1].astype(np.int32), keys, SOME)
        np.testing.assert_array_equal(alone.loops[row], together.loops[row])
        np.testing.assert_allclose(core(alone, row), core(together, row), atol=1e-5)
    # Beyond its exit a token shows what it showed there.
    loops_T = np.asarray(together.loops[2, :7])
    at, exit_ = int(np.argmin(loops_T)), int(loops_T.min())
    assert exit_ < R
    key = together.stacks["core"].key[:, :, 2, :, at]
    np.testing.assert_array_equal(key[exit_ - 1], key[R - 1])


def test_long_prompts_are_packed_to_no_effect(monkeypatch):
    keys, (tokens, length) = HOT.keys(range(4)), prompts_together()
    in_place = prefill(MODEL, LOOKS, R)(PARAMS, tokens, length, keys, SOME)
    monkeypatch.setattr(prefix, "LONG", 1)
    packed = prefill.__wrapped__(MODEL, LOOKS, R)(PARAMS, tokens, length, keys, SOME)
    np.testing.assert_array_equal(packed.loops, in_place.loops)
    for one, other in zip(packed.stacks["core"], in_place.stacks["core"], strict=True):
        for row in range(4):
            np.testing.assert_allclose(
                one[:, :, row, :, : length[row]], other[:, :, row, :, : length[row]], atol=1e-5
            )


def test_a_prompt_in_the_cache_is_the_prompt_forced_through_slots():
    row, whole = 2, PROMPTS[2]
    table = FREE.copy()
    table[: len(whole)] = whole
    through_cache = drawn_by(3, 2, table=table)[row]
    begun = [whole[:1] if i == row else prompt for i, prompt in enumerate(PROMPTS)]
    through_slots = drawn_by(3, 2, table=table, prompts=begun, new=len(whole) - 1 + NEW)[row]
    np.testing.assert_array_equal(through_slots[0][: len(whole) - 1], whole[1:])
    for cached, slotted in zip(through_cache, through_slots, strict=True):
        np.testing.assert_allclose(cached, slotted[len(whole) - 1 :], atol=1e-5)


def test_one_program_for_thresholds_depths_and_refills():
    reference()
    program, insert = verbs.generate(MODEL, LOOKS, 2, CHOOSE, NO_END), verbs.insert(MODEL)
    before = program._cache_size(), insert._cache_size()
    for threshold, most, sampling in ((0.3, 3, Sampling(seed=3, top_k=4)), (0.1, 4, GREEDY)):
        drawn_by(3, 2, Exits(np.float32(threshold), np.int32(most)), sampling)
    assert (program._cache_size(), insert._cache_size()) == before
    assert program._cache_size() == 1


def test_the_cache_is_updated_in_place():
    slots = verbs.idle_slots(MODEL, LOOKS, 3, R, T, None)
    where = lambda slots: [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(slots.stacks)]
    before = where(slots)
    program = verbs.generate(MODEL, LOOKS, 2, CHOOSE, NO_END)
    numbers, knobs = (np.int32(8), np.int32(4), np.ones(3, bool)), (FREE, HOT.knobs())
    after, _ = program(PARAMS, slots, *numbers, SOME, knobs)
    assert where(after) == before
