"""Running a model in which tokens exit: what an exited token shows to those that go on.

carry       its last keys and values, in every layer, stay what others attend to. In causal decoding
            with a cache that keeps, for every loop, the last entry this is what happens, and an
            exited token costs nothing.
full_depth  others see it as if it went on; only its output is that of its exit loop. A bound that
            no machine gains from, and what studies on recorded trajectories measure.

The output of a token is read from the state it exited with, through a coda in which all tokens show
the states they exited with.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.evaluation.exits.policies import POLICIES, Policy
from looped_jax.evaluation.exits.probe import Probe
from looped_jax.evaluation.scored.trajectory import (
    distributions,
    divergence,
    moved,
    over_tokens,
    unroll,
)
from looped_jax.model.attention import Context, attention_at
from looped_jax.model.cache import KeysValues
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array

CARRIES = ("carry", "full_depth")


class Exits(NamedTuple):
    """What became of each token: exit loop int32 and nats float32 of its output, both (B, T)."""

    loop: Any
    nats: Any
    argmax: Any


@functools.lru_cache(maxsize=32)
def exit_scorer(
    model: ModelConfig, policy_name: str, recurrences: int, chunk: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask, probe, threshold) -> (Exits, mask).

    The carry is "carry"; exits at full depth need no run of their own.
    """
    policy = POLICIES[policy_name]

    def score(params, tokens_BT, mask_BT, probe, threshold):
        inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
        exit_BT = None
        if policy.knows_future:
            exit_BT = _foreseen(model, params, policy, tokens_BT, recurrences, chunk, threshold)
        state, loop_BT = run_with_exits(
            model, params, inputs_BT, policy, probe, threshold, exit_BT,
            recurrences=recurrences, chunk=chunk,
        )  # fmt: skip
        h_BTD = FrozenModel(model, params).coda(state)
        outputs = distributions(model, params, h_BTD[None], targets_BT, chunk)
        return Exits(loop_BT, outputs["nats"][0], outputs["argmax"][0]), mask_BT

    return jax.jit(score, out_shardings=parallel.replicated(mesh))


def run_with_exits(
    model: ModelConfig,
    params: Any,
    tokens_BT: Array,
    policy: Policy,
    probe: Probe,
    threshold: Array,
    exit_BT: Array | None,
    *,
    recurrences: int,
    chunk: int,
) -> tuple[Array, Array]:
    """The state that each token exited with, and its exit loop (B, T).

    The loop ends when all have exited. `exit_BT` are loops to exit after, whatever the policy.
    """
    frozen = FrozenModel(model, params)
    input_BTD = frozen.prelude(frozen.embed(tokens_BT))
    start = frozen.initial_state(input_BTD)
    B, T, _ = input_BTD.shape
    seen = {
        "change": jnp.zeros(start.shape, jnp.float32),
        "h": jnp.zeros(input_BTD.shape, input_BTD.dtype),
        "argmax": jnp.full((B, T), -1, jnp.int32),
        "run": jnp.zeros((B, T), jnp.float32),
    }
    # What attention sees of each token, in every layer of the block.
    entries = jnp.zeros((1, model.core_layers, B, model.heads, T, model.head_dim), input_BTD.dtype)
    shown = KeysValues(entries, entries)

    def goes_on(carried):
        index, _, _, loop_BT, _ = carried
        return (index < recurrences) & jnp.any(loop_BT == 0)

    def loop(carried):
        index, state, shown, loop_BT, seen = carried
        exited_BT = loop_BT > 0
        new, shown = frozen.recur(state, input_BTD, index, keeping(shown, exited_BT))
        new = jnp.where(_like_state(exited_BT, state), state, new)
        if exit_BT is not None:
            leaves_BT = index + 1 >= exit_BT
        else:
            signal_BT, seen = observe(model, params, policy.signal, probe, state, new, seen, chunk)
            leaves_BT = (signal_BT <= threshold) & (index + 1 >= policy.first_loop)
        leaves_BT = ~exited_BT & (leaves_BT | (index + 1 == recurrences))
        return index + 1, new, shown, jnp.where(leaves_BT, index + 1, loop_BT), seen

    carried = (jnp.int32(0), start, shown, jnp.zeros((B, T), jnp.int32), seen)
    _, state, _, loop_BT, _ = jax.lax.while_loop(goes_on, loop, carried)
    return state, loop_BT


def observe(
    model: ModelConfig,
    params: Any,
    signal: str,
    probe: Probe,
    old: Array,
    new: Array,
    seen: dict[str, Array],
    chunk: int,
) -> tuple[Array, dict[str, Array]]:
    """The number (B, T) that a policy looks at after a loop, and what the next one needs.

    Only what the signal needs is computed: a policy on the state reads no output.
    """
    if signal == "probe":
        return probe.logits(new), seen
    if signal in ("change", "second_order"):
        change, motion = moved(old, new, seen["change"])
        return motion[signal], seen | {"change": change}
    h_BTD = FrozenModel(model, params).coda(new)
    if signal == "kl":
        pair = jnp.stack([seen["h"], h_BTD])

        def of_chunk(logits_of, _):
            log_q_CV, log_p_CV = (jax.nn.log_softmax(logits_of(i)) for i in (0, 1))
            return divergence(log_p_CV, log_q_CV)[None]

        kl_BT = over_tokens(model, params, pair, _no_targets(h_BTD), chunk, of_chunk)[0]
        return kl_BT, seen | {"h": h_BTD}
    outputs = distributions(model, params, h_BTD[None], _no_targets(h_BTD), chunk)
    if signal == "entropy":
        return outputs["entropy"][0], seen
    assert signal == "argmax_run", signal
    argmax_BT = outputs["argmax"][0]
    run_BT = jnp.where(argmax_BT == seen["argmax"], seen["run"] + 1, 0.0)
    return -run_BT, seen | {"argmax": argmax_BT, "run": run_BT}


def keeping(shown: KeysValues, exited_BT: Array) -> Context:
    """Causal attention in which exited tokens show the keys and values they had when they last ran.

    Args:
      shown: by layer what each token shows, (1, L, B, H, T, d); those that go on show their new.
    """

    def attend(layer, q_BTHd, k_BTHd, v_BTHd, shown):
        exited_BHTd = exited_BT[:, None, :, None]
        now = KeysValues(
            jnp.where(exited_BHTd, shown.key[0, layer], jnp.swapaxes(k_BTHd, 1, 2)),
            jnp.where(exited_BHTd, shown.value[0, layer], jnp.swapaxes(v_BTHd, 1, 2)),
        )
        mixed = attention_at(jnp.swapaxes(q_BTHd, 1, 2), *now, places_1T)
        put = lambda entries, new: entries.at[0, layer].set(new)
        return jnp.swapaxes(mixed, 1, 2), jax.tree.map(put, shown, now)

    places_1T = jnp.arange(exited_BT.shape[1])[None]
    return Context(places_1T, attend, shown)


def _foreseen(
    model: ModelConfig,
    params: Any,
    policy: Policy,
    tokens_BT: Array,
    recurrences: int,
    chunk: int,
    threshold: Array,
) -> Array:
    """Exit loops (B, T) of a policy that knows the trajectory of full depth."""
    h_RBTD, _ = unroll(model, params, tokens_BT[:, :-1], recurrences)
    outputs = distributions(model, params, h_RBTD, tokens_BT[:, 1:], chunk)
    if policy.signal == "argmax_changes":
        differs_RBT = (outputs["argmax"] != outputs["argmax"][-1]).astype(jnp.float32)
    else:
        differs_RBT = outputs["kl_to_last"]
    # Large until the last loop at which it is above the threshold.
    ahead_RBT = jax.lax.cummax(differs_RBT, axis=0, reverse=True)
    may_RBT = (ahead_RBT <= threshold).at[-1].set(True)
    return 1 + jnp.argmax(may_RBT, axis=0).astype(jnp.int32)


def _like_state(mask_BT: Array, state: Array) -> Array:
    """A mask that broadcasts against a state (B, T, D) or (K, B, T, D)."""
    return mask_BT[..., None] if state.ndim == 3 else mask_BT[None, ..., None]


def _no_targets(h_BTD: Array) -> Array:
    return jnp.zeros(h_BTD.shape[:2], jnp.int32)
