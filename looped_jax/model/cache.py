"""Keys and values of earlier tokens, so that a new token runs alone: one layout for every stack.

Entries are (R, L, B, H, S, d): recurrence, layer, row, head, position, head_dim. Prelude and coda
run once and have R = 1; S is the capacity in tokens. The model neither allocates a cache nor
decides what is kept of which recurrence: who runs it does, with the contexts made here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.model.attention import Attend, Context, attention_at, causal_attention

Array = jax.Array


class KeysValues(NamedTuple):
    """What attention has seen of a stack's tokens, each (R, L, B, H, S, d)."""

    key: Array
    value: Array


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


def appending(cache: KeysValues, recurrence: Array, position_B: Array) -> Context:
    """One token a row, at these positions, which attends to the cache and leaves its entry there.

    Args:
      recurrence: the recurrence of all rows' entries, a scalar, or (B,) one for each row. A row
        beyond the cache's last recurrence leaves nothing; it attends to the last.
    """
    attend = _append_one if jnp.ndim(recurrence) == 0 else _append_each
    return Context(position_B[:, None], attend(recurrence, position_B), cache)


def _append_one(recurrence: Array, position_B: Array) -> Attend:
    """All rows in the same recurrence: their part of the cache is read without a gather."""

    def attend(layer, q_B1Hd, k_B1Hd, v_B1Hd, cache):
        row_B = jnp.arange(position_B.shape[0])
        put = lambda entries, new: entries.at[recurrence, layer, row_B, :, position_B].set(
            new[:, 0].astype(entries.dtype), mode="drop"
        )
        kept = KeysValues(put(cache.key, k_B1Hd), put(cache.value, v_B1Hd))
        take = lambda entries: jax.lax.dynamic_slice(
            entries, (recurrence, layer, 0, 0, 0, 0), (1, 1, *entries.shape[2:])
        )[0, 0]
        return _attend_to(q_B1Hd, take(kept.key), take(kept.value), position_B), kept

    return attend


def _append_each(recurrence_B: Array, position_B: Array) -> Attend:
    """Rows in recurrences of their own."""

    def attend(layer, q_B1Hd, k_B1Hd, v_B1Hd, cache):
        row_B = jnp.arange(position_B.shape[0])
        put = lambda entries, new: entries.at[recurrence_B, layer, row_B, :, position_B].set(
            new[:, 0].astype(entries.dtype), mode="drop"
        )
        kept = KeysValues(put(cache.key, k_B1Hd), put(cache.value, v_B1Hd))
        take = lambda entries: entries.at[recurrence_B, layer, row_B].get(mode="clip")
        return _attend_to(q_B1Hd, take(kept.key), take(kept.value), position_B), kept

    return attend


def _attend_to(q_B1Hd: Array, k_BHSd: Array, v_BHSd: Array, position_B: Array) -> Array:
    mixed = attention_at(jnp.swapaxes(q_B1Hd, 1, 2), k_BHSd, v_BHSd, position_B[:, None])
    return jnp.swapaxes(mixed, 1, 2)
