"""Scoring with exits: full depth where none exits, and a plain account of it where some do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.adaptive import packed
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.scoring import scorer
from looped_jax.adaptive.signals import SIGNALS, Signal
from looped_jax.evaluation.scored.trajectory import distributions
from looped_jax.model import accounting
from looped_jax.model.cache import KeysValues
from looped_jax.model.frozen import FrozenModel
from tests.adaptive.plain import (
    CHUNK,
    LOOKS,
    MODEL,
    PARAMS,
    SCORER,
    B,
    R,
    T,
    run_plainly,
)
from tests.model.tiny import SANDWICH, tiny

TOKENS = np.random.default_rng(0).integers(0, MODEL.vocab_size, (B, T + 1)).astype(np.int32)
KEYS = jax.vmap(jax.random.key)(jnp.arange(B))
NEVER = -1.0
# Which numbers a token is to remember from loop to loop, and what the prior expects by token id.
REMEMBERING = ("head_kl", "prior")
PRIOR = np.linspace(1, 6, MODEL.vocab_size, dtype=np.float32)


def score(forced=0, threshold=NEVER, most=R, lengths=T, tokens=TOKENS, keys=KEYS):
    rows = len(tokens)
    forced, lengths = np.broadcast_to(forced, (rows, T)), np.broadcast_to(lengths, rows)
    exits = Exits(jnp.float32(threshold), jnp.int32(most))
    arguments = (lengths.astype(np.int32), keys, exits, forced.astype(np.int32))
    return jax.device_get(SCORER(PARAMS, tokens, *arguments))


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
    """Nats after given loops, in a batch that nobody leaves, and the signals that remember."""

    def plain(params, forced_BT):
        frozen, inputs_BT = FrozenModel(MODEL, params), TOKENS[:, :-1]
        fitted = {"prior": PRIOR}
        state = jnp.zeros((B, T, MODEL.width))
        memory = {
            name: SIGNALS[name].init(fitted.get(name), inputs_BT, state, MODEL.vocab_size)
            for name in REMEMBERING
        }

        def observe(old, new, memory):
            found = {
                name: SIGNALS[name].step(frozen.readout, fitted.get(name), old, new, memory[name])
                for name in REMEMBERING
            }
            values, memory = ({name: each[i] for name, each in found.items()} for i in (0, 1))
            return values, memory

        state, values = run_plainly(
            MODEL, params, inputs_BT, KEYS, forced_BT, R, observe, jax.tree.map(jnp.asarray, memory)
        )
        h_BTD = frozen.coda(state)
        outputs = distributions(MODEL, params, h_BTD[None], TOKENS[:, 1:], CHUNK)
        return outputs["nats"][0], values

    program = jax.jit(plain)
    return lambda forced: jax.device_get(program(PARAMS, jnp.asarray(forced, jnp.int32)))


def test_where_nobody_exits_it_is_full_depth_bit_for_bit(whole):
    for depth in (1, R):
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
    np.testing.assert_allclose(found.nats, carried(forced)[0], atol=1e-5)


def test_what_lies_beyond_a_text_changes_nothing(carried):
    forced, lengths = draws("random"), np.array([T, 9, 1])
    is_text = np.arange(T) < lengths[:, None]
    found = score(forced, lengths=lengths)
    np.testing.assert_array_equal(found.loops, np.where(is_text, forced, 0))
    np.testing.assert_allclose(found.nats[is_text], carried(forced)[0][is_text], atol=1e-5)


def test_rows_do_not_see_each_other():
    together = score(threshold=0.6)
    assert len(np.unique(together.loops)) > 2
    for row in range(B):
        others = TOKENS[::-1] + 1
        tokens = np.where(np.arange(B)[:, None] == row, TOKENS, others % MODEL.vocab_size)
        alone = score(threshold=0.6, lengths=np.where(np.arange(B) == row, T, 0), tokens=tokens)
        np.testing.assert_array_equal(alone.loops[row], together.loops[row])
        np.testing.assert_allclose(alone.nats[row], together.nats[row], atol=1e-5)


@pytest.mark.slow
def test_a_batch_of_one_row_is_that_row():
    together = score(threshold=0.6)
    for row in range(B):
        at = slice(row, row + 1)
        alone = score(threshold=0.6, tokens=TOKENS[at], keys=KEYS[at])
        np.testing.assert_array_equal(alone.loops, together.loops[at])
        np.testing.assert_allclose(alone.nats, together.nats[at], atol=1e-5)


def test_one_program_serves_all_thresholds_depths_and_exits():
    score()
    before = SCORER._cache_size()
    for threshold, most, forced in ((0.1, R, 0), (0.5, 3, 0), (NEVER, 2, 0), (NEVER, R, 2)):
        score(forced, threshold, most)
    assert SCORER._cache_size() == before


def test_thresholds_let_tokens_exit_earlier_but_not_before_they_are_looked_at():
    loops = [score(threshold=x).loops for x in (NEVER, 0.2, 0.5, 9.0)]
    means = [each.mean() for each in loops]
    assert means == sorted(means, reverse=True)
    assert means[0] == R
    assert (loops[-1] == 1).all()


def test_what_signals_remember_travels_with_its_token(carried, monkeypatch):
    """Through packed places, two memories in one tree: exits are those of the plain account."""
    limits = {"head_kl": 0.08, "prior": 1.2}

    def init(fitted, *arguments):
        return {name: SIGNALS[name].init(fitted.get(name), *arguments) for name in limits}

    def step(readout, fitted, old, new, memory):
        found = {
            name: SIGNALS[name].step(readout, fitted.get(name), old, new, memory[name])
            for name in limits
        }
        value = jnp.maximum(*(found[name][0] / limit for name, limit in limits.items()))
        return value, {name: memory for name, (_, memory) in found.items()}

    both = Signal("both have settled", init, step, lambda model: 0.0, first=2, is_fitted=True)
    monkeypatch.setitem(SIGNALS, "both", both)
    program = scorer(MODEL, Looks("both", 1, 2), CHUNK, (0.6, 0.2))
    exits = Exits(jnp.float32(1), jnp.int32(R), {"prior": PRIOR})
    found = jax.device_get(program(PARAMS, TOKENS, np.full(B, T, np.int32), KEYS, exits))
    assert len(np.unique(found.loops)) > 2
    nats, values_RBT = carried(found.loops)
    may_RBT = np.maximum(*(values_RBT[name] / limit for name, limit in limits.items())) <= 1
    may_RBT[0], may_RBT[-1] = False, True
    np.testing.assert_array_equal(found.loops, 1 + np.argmax(may_RBT, axis=0))
    np.testing.assert_allclose(found.nats, nats, atol=1e-5)


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
    model = tiny(**SANDWICH | {"width": 128, "head_dim": 64, "mlp_hidden": 512, "core_layers": 1})
    places, in_row = 2 * T, T

    def recur(params, state_1MD, entries):
        at = packed.places(jnp.ones((2, T), bool), places, in_row)
        context = packed.of_places(at, entries, jnp.ones(places, bool))
        return FrozenModel(model, params).recur(state_1MD, state_1MD, jnp.int32(1), context)

    shape = lambda *axes: jax.ShapeDtypeStruct(axes, jnp.float32)
    pair = lambda *axes: KeysValues(shape(*axes), shape(*axes))
    lowered = jax.jit(recur).lower(
        accounting.abstract_parameters(model), shape(1, places, 128),
        pair(1, 1, 2, model.heads, T, 64),
    )  # fmt: skip
    counted = lowered.compile().cost_analysis()["flops"] / places
    one = accounting.forward_flops_per_token(model, T, 1)
    assert counted == pytest.approx(one - accounting.forward_flops_per_token(model, T, 0), rel=0.03)
