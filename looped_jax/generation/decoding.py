"""The compiled halves of decoding: a prompt into a cache, and one token after it.

Rows of a batch have prompts of their own length, filled up on the right: a row's tokens stand at
the places they would have alone, and what lies beyond its length is never attended to. Rows are not
split over devices, since a batch has any number of them; parameters may be.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.generation.caches import Cache, empty
from looped_jax.model.cache import appending, recording
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array


@functools.lru_cache(maxsize=32)
def prefill(model: ModelConfig, kept: int, capacity: int) -> Callable[..., tuple[Array, Cache]]:
    """The compiled (params, tokens (B, T), length (B,), keys (B,), r) -> (logits (B, V), Cache).

    The logits are those after the last token of each row. Compiled once for each (B, T); r is
    traced and at most `kept`, unless that is one, which then holds the last recurrence.

    Args:
      kept: recurrences that the cache keeps.
      capacity: tokens that the cache has room for; T at least.
    """

    @nn.logical_axis_rules(())
    def run(params, tokens_BT, length_B, keys_B, recurrences):
        B, T = tokens_BT.shape
        frozen, cache = FrozenModel(model, params), empty(model, kept, B, capacity)
        record = lambda stack: recording(cache.stacks[stack], 0, T, model.attention)
        input_BTD, prelude = frozen.prelude(frozen.embed(tokens_BT), record("prelude"))
        state = frozen.initial_state(input_BTD, keys_B=keys_B)

        def recur(index, carried):
            state, core = carried
            entry = jnp.minimum(index, kept - 1)
            return frozen.recur(state, input_BTD, index, recording(core, entry, T, model.attention))

        state, core = jax.lax.fori_loop(0, recurrences, recur, (state, cache.stacks["core"]))
        h_BTD, coda = frozen.coda(state, record("coda"))
        last_B1D = jnp.take_along_axis(h_BTD, (length_B - 1)[:, None, None], axis=1)
        stacks = {"prelude": prelude, "core": core, "coda": coda}
        return frozen.readout(last_B1D)[:, 0], Cache(length_B, stacks)

    return jax.jit(run)


@functools.lru_cache(maxsize=32)
def decode(model: ModelConfig, kept: int) -> Callable[..., tuple[Array, Cache]]:
    """The compiled (params, Cache, token (B,), keys (B,), r) -> (logits (B, V), Cache).

    One more token for each row; the given cache is used up. A full row overwrites its last entry.
    """

    @nn.logical_axis_rules(())
    def run(params, cache: Cache, token_B, keys_B, recurrences):
        frozen, stacks = FrozenModel(model, params), cache.stacks
        at_B = jnp.minimum(cache.length, stacks["core"].key.shape[-2] - 1)
        append = lambda stack, entry: appending(stack, entry, at_B)
        x_B1D = frozen.embed(token_B[:, None], at_B[:, None])
        input_B1D, prelude = frozen.prelude(x_B1D, append(stacks["prelude"], jnp.int32(0)))
        state = frozen.initial_state(input_B1D, at_B[:, None], keys_B)

        def recur(index, carried):
            state, core = carried
            entry = jnp.minimum(index, kept - 1)
            return frozen.recur(state, input_B1D, index, append(core, entry))

        state, core = jax.lax.fori_loop(0, recurrences, recur, (state, stacks["core"]))
        h_B1D, coda = frozen.coda(state, append(stacks["coda"], jnp.int32(0)))
        stacks = {"prelude": prelude, "core": core, "coda": coda}
        return frozen.readout(h_B1D)[:, 0], Cache(at_B + 1, stacks)

    return jax.jit(run, donate_argnums=1)
