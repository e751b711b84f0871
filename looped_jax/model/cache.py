"""Keys and values of earlier tokens, so that a new token runs alone: one layout for every stack.

Entries are (R, L, B, H, S, d): recurrence, layer, row, head, position, head_dim. Prelude and coda
run once and have R = 1; S is the capacity in tokens. The model neither allocates a cache nor
decides what is kept of which recurrence: who runs it does, with the contexts made here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.model.attention import Context, attention_at, causal_attention
from looped_jax.model.config import ModelConfig

Array = jax.Array


class KeysValues(NamedTuple):
    """What attention has seen of a stack's tokens, each (R, L, B, H, S, d)."""

    key: Array
    value: Array


def shapes(
    model: ModelConfig, recurrences: int, batch: int, capacity: int
) -> dict[str, tuple[int, ...]]:
    """Shape of the keys, and of the values, of each stack; one without layers has no entries."""
    layers = {
        "prelude": (1, model.prelude_layers),
        "core": (recurrences, model.core_layers),
        "coda": (1, model.coda_layers),
    }
    entry = (batch, model.heads, capacity, model.head_dim)
    return {stack: (*count, *entry) for stack, count in layers.items()}


def empty(model: ModelConfig, recurrences: int, batch: int, capacity: int) -> dict[str, KeysValues]:
    """Room for so many tokens of so many recurrences, of "prelude", "core" and "coda"."""
    zeros = lambda shape: jnp.zeros(shape, jnp.dtype(model.compute_dtype))
    of_stacks = shapes(model, recurrences, batch, capacity)
    return {stack: KeysValues(zeros(shape), zeros(shape)) for stack, shape in of_stacks.items()}


def recording(cache: KeysValues, recurrence: Array | int, length: int, kernel: str) -> Context:
    """Rows from the start of their texts: plain causal attention that leaves its entries.

    Args:
      recurrence: the entries' place on the first axis of the cache.
      length: T tokens of the call, which take positions 0 to T - 1.
      kernel: see `causal_attention`.
    """

    def attend(layer, q_BTHd, k_BTHd, v_BTHd, cache):
        def put(entries: Array, new_BTHd: Array) -> Array:
            new = jnp.swapaxes(new_BTHd, 1, 2)[None, None].astype(entries.dtype)
            return jax.lax.dynamic_update_slice(entries, new, (recurrence, layer, 0, 0, 0, 0))

        kept = KeysValues(put(cache.key, k_BTHd), put(cache.value, v_BTHd))
        return causal_attention(q_BTHd, k_BTHd, v_BTHd, kernel), kept

    return Context(jnp.arange(length)[None], attend, cache)


def appending(
    cache: KeysValues, recurrence: Array, position_B: Array, row_B: Array | None = None
) -> Context:
    """One token a row, at these positions, which attends to the cache and leaves its entry there.

    Args:
      recurrence: of all entries, a scalar, or (B,) one for each row.
      row_B: rows of the cache that the rows of the call are; None for all in their order. One
        beyond the cache (its row or its recurrence) leaves nothing, and its result means nothing.
    """
    together = jnp.ndim(recurrence) == 0 and row_B is None
    rows = jnp.arange(position_B.shape[0]) if row_B is None else row_B

    def attend(layer, q_B1Hd, k_B1Hd, v_B1Hd, cache):
        def put(entries: Array, new_B1Hd: Array) -> Array:
            at = entries.at[recurrence, layer, rows, :, position_B]
            return at.set(new_B1Hd[:, 0].astype(entries.dtype), mode="drop")

        def take(entries: Array) -> Array:
            if not together:
                return entries.at[recurrence, layer, rows].get(mode="clip")
            # Rows in the same recurrence lie together: no gather.
            start, size = (recurrence, layer, 0, 0, 0, 0), (1, 1, *entries.shape[2:])
            return jax.lax.dynamic_slice(entries, start, size)[0, 0]

        kept = KeysValues(put(cache.key, k_B1Hd), put(cache.value, v_B1Hd))
        q_BH1d = jnp.swapaxes(q_B1Hd, 1, 2)
        mixed = attention_at(q_BH1d, take(kept.key), take(kept.value), position_B[:, None])
        return jnp.swapaxes(mixed, 1, 2), kept

    return Context(position_B[:, None], attend, cache)
