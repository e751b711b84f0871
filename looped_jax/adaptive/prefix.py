"""Prompts in a cache, every token at its own exit: what slots go on from."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.adaptive.exits import Exits, look
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.model.attention import Context, attention_at
from looped_jax.model.cache import KeysValues, empty, recording
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array


class Prefix(NamedTuple):
    """Prompts in a cache; B rows, each field (B, …).

    The last token of each prompt is still to loop: its start stands here, not its end.
    """

    position: Array  # of the last token
    loops: Array  # (B, T) of every token, 0 beyond the prompt; the last token's will be its slot's
    input: Array  # (B, D), e of the last token
    state: Array  # (B, D), h⁰ of the last token
    memory: Any  # of the signal, for the last token
    stacks: dict[str, KeysValues]


@functools.lru_cache(maxsize=32)
def prefill(model: ModelConfig, looks: Looks, kept: int) -> Callable[..., Prefix]:
    """The compiled (params, tokens (B, T), length (B,), keys (B,), Exits) -> Prefix.

    Compiled once for each (B, T). Tokens that have exited stay in the batch until all have.

    Args:
      kept: recurrences that the cache keeps: `most` at least, or 1 for the last of each token.
    """
    signal = SIGNALS[looks.signal]

    @nn.logical_axis_rules(())
    def run(params, tokens_BT, length_B, keys_B, exits: Exits):
        B, T = tokens_BT.shape
        frozen, stacks = FrozenModel(model, params), empty(model, kept, B, T)
        record = lambda stack: recording(stacks[stack], 0, T, model.attention)
        input_BTD, prelude = frozen.prelude(frozen.embed(tokens_BT), record("prelude"))
        start = frozen.initial_state(input_BTD, keys_B=keys_B)
        memory = signal.init(exits.fitted, tokens_BT, start, model.vocab_size)
        is_prompt_BT = jnp.arange(T)[None] < length_B[:, None]

        def loop(carried):
            index, state, memory, loops_BT, core = carried
            looping_BT = loops_BT == 0
            new, core = frozen.recur(
                state, input_BTD, index, _recording_exits(core, index, looping_BT)
            )
            exits_BT, memory = look(frozen, looks, exits, state, new, memory, index + 1)
            new = jnp.where(looping_BT[..., None], new, state)
            loops_BT = jnp.where(looping_BT & exits_BT, index + 1, loops_BT)
            return index + 1, new, memory, loops_BT, core

        goes_on = lambda carried: jnp.any(carried[3] == 0)
        # What lies beyond a prompt has exited before it began; nothing attends to it.
        loops_BT = jnp.where(is_prompt_BT, 0, 1)
        begin = (jnp.int32(0), start, memory, loops_BT, stacks["core"])
        n, state, _, loops_BT, core = jax.lax.while_loop(goes_on, loop, begin)
        core = jax.tree.map(lambda entries: _fill_deeper(entries, n), core)
        _, coda = frozen.coda(state, record("coda"))
        last_B = length_B - 1
        take = lambda x: jnp.take_along_axis(x, last_B.reshape(B, *[1] * (x.ndim - 1)), 1)[:, 0]
        return Prefix(
            position=last_B, loops=jnp.where(is_prompt_BT, loops_BT, 0), input=take(input_BTD),
            state=take(start), memory=jax.tree.map(take, memory),
            stacks={"prelude": prelude, "core": core, "coda": coda},
        )  # fmt: skip

    return jax.jit(run)


def _recording_exits(core: KeysValues, index: Array, looping_BT: Array) -> Context:
    """Whole rows whose looping tokens leave their entries of this loop, the others those before."""
    positions_1T = jnp.arange(looping_BT.shape[1])[None]
    kept = core.key.shape[0]
    entry, before = jnp.minimum(index, kept - 1), jnp.clip(index - 1, 0, kept - 1)

    def attend(layer, q_BTHd, k_BTHd, v_BTHd, core):
        def shown(entries: Array, new_BTHd: Array) -> Array:
            old = entries[before, layer]
            return jnp.where(looping_BT[:, None, :, None], jnp.swapaxes(new_BTHd, 1, 2), old)

        now = KeysValues(shown(core.key, k_BTHd), shown(core.value, v_BTHd))
        mixed = attention_at(jnp.swapaxes(q_BTHd, 1, 2), *now, positions_1T)
        put = lambda entries, new: jax.lax.dynamic_update_slice(
            entries, new[None, None].astype(entries.dtype), (entry, layer, 0, 0, 0, 0)
        )
        return jnp.swapaxes(mixed, 1, 2), jax.tree.map(put, core, now)

    return Context(positions_1T, attend, core)


def _fill_deeper(entries: Array, loops: Array) -> Array:
    """Entries (R, …) of recurrences from number `loops` on become those of the last before."""
    kept = entries.shape[0]
    return entries[jnp.minimum(jnp.arange(kept), loops - 1)]
