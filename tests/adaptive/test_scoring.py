"""Scoring with exits: full depth where none exits, and a plain account of it where some do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.adaptive import packed
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Looks, Rule
from looped_jax.adaptive.scoring import scorer
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.evaluation.exits.policies import POLICIES
from looped_jax.evaluation.exits.running import run_with_exits
from looped_jax.evaluation.scored.trajectory import distributions
from looped_jax.model import accounting
from looped_jax.model.cache import KeysValues
from looped_jax.model.frozen import FrozenModel
from tests.model.tiny import SANDWICH, random_params, tiny

# From noise, so that rows have to draw their own.
WHOLE = SANDWICH | {"vocab_size": 60, "prelude_layers": 1, "coda_layers": 1, "max_length": 24}
MODEL = tiny(**WHOLE)
PARAMS = random_params(MODEL)
B, T, R, CHUNK = 3, 24, 5, 50
TOKENS = np.random.default_rng(0).integers(0, MODEL.vocab_size, (B, T + 1)).astype(np.int32)
KEYS = jax.vmap(jax.random.key)(jnp.arange(B))
NEVER = -1.0
LOOKS = Rule("change", NEVER).looks


def score(forced=0, threshold=NEVER, most=R, lengths=T, rows=slice(None), program=None):
    program = program or scorer(MODEL, LOOKS, CHUNK)
    forced, lengths = np.broadcast_to(forced, (B, T)), np.broadcast_to(lengths, B)
    exits = Exits(jnp.float32(threshold), jnp.int32(most))
    scored = program(
        PARAMS, TOKENS[rows], lengths[rows].astype(np.int32), KEYS[rows], exits,
        forced[rows].astype(np.int32),
    )  # fmt: skip
    return jax.device_get(scored)


@pytest.fixture(scope="module")
def whole():
    """Full depth by the model itself, the depth traced."""

    def plain(params, depth):
        frozen = FrozenModel(MODEL, params)
        h_BTD = frozen.hidden(TOKENS[:, :-1], depth)
        return distributions(MODEL, params, h_BTD[None], TOKENS[:, 1:], CHUNK)

    program = jax.jit(plain)
    return lambda depth: jax.device_get(program(PARAMS, jnp.int32(depth)))


@pytest.fixture(scope="module")
def carried():
    """Exits after given loops, in a batch that nobody leaves: the plain account."""

    def plain(params, forced):
        state, _ = run_with_exits(
            MODEL, params, TOKENS[:, :-1], POLICIES["oracle_kl"], None, jnp.float32(0), forced,
            recurrences=R, chunk=CHUNK,
        )  # fmt: skip
        h_BTD = FrozenModel(MODEL, params).coda(state)
        return distributions(MODEL, params, h_BTD[None], TOKENS[:, 1:], CHUNK)["nats"][0]

    program = jax.jit(plain)
    return lambda forced: np.asarray(program(PARAMS, jnp.asarray(forced, jnp.int32)))


@pytest.mark.parametrize("depth", [1, R])
def test_where_nobody_exits_it_is_full_depth_bit_for_bit(depth, whole):
    found, expected = score(most=depth), whole(depth)
    assert (found.loops == depth).all()
    np.testing.assert_array_equal(found.nats, expected["nats"][0])
    np.testing.assert_array_equal(found.argmax, expected["argmax"][0])


def draws(kind):
    forced = np.random.default_rng(1).integers(1, R + 1, (B, T))
    if kind == "all at once":
        forced[:] = 2
    elif kind == "one straggler row":
        forced[1:], forced[0] = 1, R
    elif kind == "one straggler":
        forced[:], forced[1, 7] = 1, R
    elif kind == "few leave":
        forced[:], forced[2, 3] = R, 2
    elif kind == "every stage":  # half of those that are left leave after each loop
        forced = np.minimum(1 + np.random.default_rng(2).geometric(0.5, (B, T)), R)
    return forced


@pytest.mark.parametrize(
    "kind",
    ["random", "all at once", "one straggler row", "one straggler", "few leave", "every stage"],
)
def test_given_exits_are_those_of_a_batch_that_nobody_leaves(kind, carried):
    forced = draws(kind)
    found = score(forced)
    np.testing.assert_array_equal(found.loops, forced)
    np.testing.assert_allclose(found.nats, carried(forced), atol=1e-5)


def test_what_lies_beyond_a_text_changes_nothing(carried):
    forced, lengths = draws("random"), np.array([T, 9, 1])
    is_text = np.arange(T) < lengths[:, None]
    found = score(forced, lengths=lengths)
    np.testing.assert_array_equal(found.loops, np.where(is_text, forced, 0))
    np.testing.assert_allclose(found.nats[is_text], carried(forced)[is_text], atol=1e-5)


def test_rows_do_not_see_each_other():
    together = score(threshold=0.6)
    assert len(np.unique(together.loops)) > 2
    for row in range(B):
        alone = score(threshold=0.6, rows=slice(row, row + 1))
        np.testing.assert_array_equal(alone.loops, together.loops[row : row + 1])
        np.testing.assert_allclose(alone.nats, together.nats[row : row + 1], atol=1e-5)


def test_one_program_serves_all_thresholds_depths_and_exits():
    program = scorer(MODEL, LOOKS, CHUNK)
    for threshold, most, forced in ((0.1, R, 0), (0.5, 3, 0), (NEVER, 2, 0), (NEVER, R, 2)):
        score(forced, threshold, most)
    sizes = {TOKENS.shape, TOKENS[:1].shape}
    assert program._cache_size() <= len(sizes)


def test_thresholds_let_tokens_exit_earlier_but_not_before_they_are_looked_at():
    loops = [score(threshold=x).loops for x in (NEVER, 0.2, 0.5, 9.0)]
    means = [each.mean() for each in loops]
    assert means == sorted(means, reverse=True)
    assert means[0] == R
    assert (loops[-1] == 1).all()


@pytest.mark.parametrize("name", ["head_kl", "prior"])
def test_what_a_signal_remembers_travels_with_its_token(name):
    """The packed stages against one program in which every token stays in its place."""
    fitted = jnp.linspace(1, 6, MODEL.vocab_size) if name == "prior" else None
    looks = Looks(name, 1, SIGNALS[name].first)
    exits = Exits(jnp.float32({"head_kl": 0.08, "prior": 1.2}[name]), jnp.int32(R), fitted)
    lengths = np.full(B, T, np.int32)
    packed_stages, in_place = (
        jax.device_get(scorer(MODEL, looks, CHUNK, stages)(PARAMS, TOKENS, lengths, KEYS, exits))
        for stages in ((0.6, 0.2), (1e-9,))
    )
    assert len(np.unique(in_place.loops)) > 2
    np.testing.assert_array_equal(packed_stages.loops, in_place.loops)
    np.testing.assert_allclose(packed_stages.nats, in_place.nats, atol=1e-5)


def test_a_share_of_settled_tokens_ends_the_loop_for_all(whole):
    program = scorer(MODEL, LOOKS, CHUNK, together=True)
    alone = score(threshold=0.35).loops  # at full depth the first loop to settle after is the same
    exits = Exits(jnp.float32(0.35), jnp.int32(R), share=jnp.float32(0.5))
    found = jax.device_get(program(PARAMS, TOKENS, np.full(B, T, np.int32), KEYS, exits))
    (depth,) = np.unique(found.loops)
    assert alone.min() <= depth <= alone.max()
    np.testing.assert_allclose(found.nats, whole(depth)["nats"][0], atol=1e-5)
    strict = exits._replace(share=jnp.float32(1.0), threshold=jnp.float32(NEVER))
    found = jax.device_get(program(PARAMS, TOKENS, np.full(B, T, np.int32), KEYS, strict))
    assert (found.loops == R).all()


def test_the_flops_that_are_counted_are_those_of_the_compiled_program():
    """One recurrence of a stage; norms and the like, which are not counted, are small here."""
    model = tiny(**WHOLE | {"width": 128, "head_dim": 64, "mlp_hidden": 512, "core_layers": 1})
    places, in_row = 48, T

    def recur(params, state_1MD, entries, own):
        at = packed.places(jnp.ones((2, T), bool), places, in_row)
        context = packed.of_places(at, entries, own, jnp.ones(places, bool))
        return FrozenModel(model, params).recur(state_1MD, state_1MD, jnp.int32(1), context)

    shape = lambda *axes: jax.ShapeDtypeStruct(axes, jnp.float32)
    pair = lambda *axes: KeysValues(shape(*axes), shape(*axes))
    lowered = jax.jit(recur).lower(
        accounting.abstract_parameters(model), shape(1, places, 128),
        pair(1, 1, 2, model.heads, T, 64), pair(1, 2, model.heads, in_row, 64),
    )  # fmt: skip
    counted = lowered.compile().cost_analysis()["flops"] / places
    one = accounting.forward_flops_per_token(model, T, 1)
    assert counted == pytest.approx(one - accounting.forward_flops_per_token(model, T, 0), rel=0.03)
