"""Prompts in a cache, every token at its own exit: what slots go on from."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.loop import BEYOND, Loop, Running
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.model.cache import KeysValues, empty, recording
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array

# From so many tokens on, those of prompts that still loop are packed, in stages of these parts: a
# stage takes a second or two to compile.
LONG, STAGES = 1024, (0.45, 0.15)


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

    Compiled once for each (B, T).

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

        exit_BT = jnp.where(is_prompt_BT, 0, BEYOND).astype(jnp.int32)
        ended, core = Loop(frozen, looks, exits).run(
            Running(jnp.int32(0), start, exit_BT, memory), input_BTD,
            STAGES if B * T >= LONG else (), recorded=stacks["core"],
        )  # fmt: skip
        state, loops_BT, n = ended.state, jnp.maximum(ended.exit, 0), ended.done
        core = jax.tree.map(lambda entries: _fill_deeper(entries, n), core)
        _, coda = frozen.coda(state, record("coda"))
        last_B = length_B - 1
        take = lambda x: jnp.take_along_axis(x, last_B.reshape(B, *[1] * (x.ndim - 1)), 1)[:, 0]
        return Prefix(
            position=last_B, loops=loops_BT, input=take(input_BTD),
            state=take(start), memory=jax.tree.map(take, memory),
            stacks={"prelude": prelude, "core": core, "coda": coda},
        )  # fmt: skip

    return jax.jit(run)


def _fill_deeper(entries: Array, loops: Array) -> Array:
    """Entries (R, …) of recurrences from number `loops` on become those of the last before."""
    kept = entries.shape[0]
    return entries[jnp.minimum(jnp.arange(kept), loops - 1)]
