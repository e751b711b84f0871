"""One recurrence of those tokens alone that still loop, in a batch whose other tokens have exited.

A stage takes the tokens that loop when it begins into a flat list of M places, in the order of the
text: matrices see the list, whatever row a place belongs to. Attention sees the queries of rows of
A places each, and the keys and values of all T tokens, of which those that have exited show what
they showed in their last loop (copy on exit). Packing is a search in a cumulated sum and writing
back a gather, so nothing is sorted or scattered.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.model.attention import Context, causal_attention
from looped_jax.model.cache import KeysValues

Array = jax.Array


class Places(NamedTuple):
    """Where the tokens of a stage stand: M places in a list, A in each of B rows of T tokens.

    Attributes:
      loops_BT: which tokens have a place.
      token_M: number b · T + t of the token at a place; any at places that are left over.
      is_taken_M: whether a place has a token.
      place_BT: the place of a token that has one; any of the others.
      row_M, slot_M: row of a place, and its number among the places of the row.
      place_BA: the place at each slot of a row; any at slots that are left over.
      position_M, position_BA: tokens before a place's or slot's token in its row.
    """

    loops_BT: Array
    token_M: Array
    is_taken_M: Array
    place_BT: Array
    row_M: Array
    slot_M: Array
    place_BA: Array
    position_M: Array
    position_BA: Array

    def pack(self, x_BT: Array) -> Array:
        """(M, …) of (B, T, …)."""
        return x_BT.reshape(-1, *x_BT.shape[2:])[self.token_M]

    def unpack(self, x_M: Array, others_BT: Array) -> Array:
        """(B, T, …) of (M, …), and of `others_BT` where a token has no place."""
        return jnp.where(_like(self.loops_BT, others_BT), x_M[self.place_BT], others_BT)


def places(loops_BT: Array, most: int, most_in_row: int) -> Places:
    """Places for the tokens that loop, of which there are at most M = `most`, A in a row."""
    B, T = loops_BT.shape
    loops_N = loops_BT.reshape(-1)
    before_N = jnp.cumsum(loops_N, dtype=jnp.int32)  # looping tokens up to and with each
    number_M = jnp.arange(most)
    token_M = jnp.searchsorted(before_N, number_M + 1, method="scan_unrolled")
    token_M = jnp.minimum(token_M, B * T - 1).astype(jnp.int32)
    in_row_BT = jnp.cumsum(loops_BT, axis=1, dtype=jnp.int32)
    before_row_B = before_N.reshape(B, T)[:, -1] - in_row_BT[:, -1]
    row_M = token_M // T
    slot_A = jnp.arange(most_in_row)
    place_BA = jnp.clip(before_row_B[:, None] + slot_A[None], 0, most - 1)
    position_M = token_M % T
    return Places(
        loops_BT=loops_BT,
        token_M=token_M,
        is_taken_M=number_M < before_N[-1],
        place_BT=jnp.clip(before_N - 1, 0, most - 1).reshape(B, T),
        row_M=row_M,
        slot_M=jnp.clip(number_M - before_row_B[row_M], 0, most_in_row - 1),
        place_BA=place_BA,
        position_M=position_M,
        position_BA=position_M[place_BA],
    )


def of_places(at: Places, entries: KeysValues, loops_M: Array) -> Context:
    """Attention of the list (1, M, H, d), beside the entries of all tokens, (1, L, B, H, T, d).

    Tokens at the places `loops_M` leave their entries of this loop; the others keep theirs.
    """
    loops_B1T1 = (at.loops_BT & loops_M[at.place_BT])[:, None, :, None]
    # A slot without a token stands at some place, and sees what is before it, to no effect.
    sees_B1AT = (at.position_BA[..., None] >= jnp.arange(at.loops_BT.shape[1])[None, None])[:, None]

    def attend(layer, q_1MHd, k_1MHd, v_1MHd, entries):
        of_rows = lambda x_1MHd: x_1MHd[0][at.place_BT]
        (k, keys), (v, values) = (
            _put(entries.key, of_rows(k_1MHd), layer, loops_B1T1),
            _put(entries.value, of_rows(v_1MHd), layer, loops_B1T1),
        )
        q = jnp.swapaxes(q_1MHd[0][at.place_BA], 1, 2)  # (B, H, A, d)
        q = q * q.dtype.type(q.shape[-1] ** -0.5)
        scores = jnp.matmul(q, jnp.swapaxes(k, 2, 3), preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.where(sees_B1AT, scores, -jnp.inf), axis=-1).astype(v.dtype)
        mixed = jnp.matmul(weights, v)
        return jnp.swapaxes(mixed, 1, 2)[at.row_M, at.slot_M][None], KeysValues(keys, values)

    return Context(at.position_M[None], attend, entries)


def in_place(entries: KeysValues, loops_BT: Array, kernel: str) -> Context:
    """Attention of whole rows in which exited tokens keep their entries, (1, L, B, H, T, d)."""
    loops_B1T1 = loops_BT[:, None, :, None]

    def attend(layer, q_BTHd, k_BTHd, v_BTHd, entries):
        k, keys = _put(entries.key, k_BTHd, layer, loops_B1T1)
        v, values = _put(entries.value, v_BTHd, layer, loops_B1T1)
        k_BTHd, v_BTHd = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
        return causal_attention(q_BTHd, k_BTHd, v_BTHd, kernel), KeysValues(keys, values)

    return Context(jnp.arange(loops_BT.shape[1])[None], attend, entries)


def _put(entries: Array, new_BTHd: Array, layer: Array, loops_B1T1: Array) -> tuple[Array, Array]:
    """(entries of one layer (B, H, T, d) with those of looping tokens new, those of all layers)."""
    old = jax.lax.dynamic_index_in_dim(entries[0], layer, 0, keepdims=False)
    now = jnp.where(loops_B1T1, jnp.swapaxes(new_BTHd, 1, 2).astype(old.dtype), old)
    start = (0, layer, 0, 0, 0, 0)
    return now, jax.lax.dynamic_update_slice(entries, now[None, None], start)


def _like(mask_BT: Array, x: Array) -> Array:
    """A mask with the axes of x (B, T, …)."""
    return mask_BT.reshape(*mask_BT.shape, *[1] * (x.ndim - 2))
