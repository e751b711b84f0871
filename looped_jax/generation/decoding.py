"""The compiled halves of decoding: a prompt into a cache, and one token after it.

Rows of a batch have prompts of their own length, filled up on the right: a row's tokens stand at
the places they would have alone, and what lies beyond its length is never attended to.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.generation.caches import Cache, empty
from looped_jax.model import cache as collections
from looped_jax.model.config import ModelConfig
from looped_jax.model.lm import LoopedLM

Array = jax.Array

# Folded into a row's key, so that the start from noise and the sampling do not share one.
_NOISE = 0x6E6F6973


@functools.lru_cache(maxsize=32)
def prefill(model: ModelConfig, slots: int, capacity: int) -> Callable[..., tuple[Array, Cache]]:
    """The compiled (params, tokens (B, T), length (B,), keys (B,), r) -> (logits (B, V), Cache).

    The logits are those after the last token of each row. Compiled once for each (B, T); r is
    traced and at most `slots`, unless there is one slot, which then holds the last recurrence.

    Args:
      slots: recurrences that the cache keeps.
      capacity: tokens that the cache has room for; T at least.
    """

    def run(params, tokens_BT, length_B, keys_B, recurrences):
        B, T = tokens_BT.shape
        part = _Part(model, params)
        input_BTD, kept = part.recording("prelude", part("embed", tokens_BT))
        places_BT = jnp.broadcast_to(jnp.arange(T), (B, T))
        state = start(model, params, input_BTD, places_BT, keys_B)

        def recur(index, carried):
            state, core = carried
            state, kept = part.recording("recur", state, input_BTD, index)
            put = lambda slot, new: _put_slot(slot, new, jnp.minimum(index, slots - 1))
            return state, jax.tree.map(put, core, kept["core"])

        core = empty(model, slots, B, T).stacks["core"]
        state, core = jax.lax.fori_loop(0, recurrences, recur, (state, core))
        h_BTD, kept_by_coda = part.recording("coda", state)
        last_B1D = jnp.take_along_axis(h_BTD, (length_B - 1)[:, None, None], axis=1)
        grow = lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, capacity - T), (0, 0)])
        stacks = jax.tree.map(grow, kept | {"core": core} | kept_by_coda)
        return part("readout", last_B1D)[:, 0], Cache(length_B, stacks)

    return jax.jit(run)


@functools.lru_cache(maxsize=32)
def decode(model: ModelConfig, slots: int) -> Callable[..., tuple[Array, Cache]]:
    """The compiled (params, Cache, token (B,), keys (B,), r) -> (logits (B, V), Cache).

    One more token for each row; the given cache is used up. A full row overwrites its last entry.
    """

    def run(params, cache: Cache, token_B, keys_B, recurrences):
        capacity = cache.stacks["core"]["key"].shape[-2]
        length_B = jnp.minimum(cache.length, capacity - 1)
        part = _Part(model, params, length_B)
        of_stack = lambda name: {name: cache.stacks[name]} if name in cache.stacks else {}
        input_B1D, kept = part.recording(
            "prelude", part("embed", token_B[:, None]), past=of_stack("prelude")
        )
        state = start(model, params, input_B1D, length_B[:, None], keys_B)

        def recur(index, carried):
            state, core = carried
            slot = jnp.minimum(index, slots - 1)
            past = jax.tree.map(lambda x: _take_slot(x, slot), of_stack("core"))
            state, kept = part.recording("recur", state, input_B1D, index, past=past)
            return state, jax.tree.map(lambda x, new: _put_slot(x, new, slot), core, kept["core"])

        core = empty(model, slots, token_B.shape[0], 1).stacks["core"]
        state, core = jax.lax.fori_loop(0, recurrences, recur, (state, core))
        h_B1D, kept_by_coda = part.recording("coda", state, past=of_stack("coda"))
        append = lambda x, new: _append(x, new, length_B)
        stacks = jax.tree.map(append, cache.stacks, kept | {"core": core} | kept_by_coda)
        return part("readout", h_B1D)[:, 0], Cache(length_B + 1, stacks)

    return jax.jit(run, donate_argnums=1)


def start(
    model: ModelConfig, params: Any, input_BTD: Array, places_BT: Array, keys_B: Array
) -> Array:
    """h⁰ of tokens at these places. Noise depends on the row's key and the place alone."""
    lm = LoopedLM(model)

    def initial(x: Array, key: Array) -> Any:
        return lm.apply({"params": params}, x, method="initial_state", rngs={"state": key})

    if model.initial_state != "noise":
        return initial(input_BTD, jax.random.key(0))
    at_place = lambda key, place: jax.random.fold_in(jax.random.fold_in(key, _NOISE), place)
    keys_BT = jax.vmap(jax.vmap(at_place, (None, 0)))(keys_B, places_BT)
    one = lambda x_D, key: initial(x_D[None, None], key)[0, 0]
    return jax.vmap(jax.vmap(one))(input_BTD, keys_BT)


class _Part:
    """Calls parts of the model on tokens after `length_B` cached ones, or at the start.

    Rows are not split over devices, since a batch has any number of them; parameters may be.
    """

    def __init__(self, model: ModelConfig, params: Any, length_B: Array | None = None):
        self._model, self._params, self._length_B = model, params, length_B

    def __call__(self, method: str, *args: Any) -> Any:
        with nn.logical_axis_rules(()):
            return LoopedLM(self._model).apply(self._variables({}), *args, method=method)

    def recording(self, method: str, *args: Any, past: dict | None = None) -> tuple[Any, dict]:
        """The part's result, and {stack: {"key", "value"}} of what its layers wrote, if any."""
        variables, mutable = self._variables(past or {}), [collections.WRITTEN]
        with nn.logical_axis_rules(()):
            result, written = LoopedLM(self._model).apply(
                variables, *args, method=method, mutable=mutable
            )
        stacks = written.get(collections.WRITTEN, {})
        return result, {name: dict(stack["attn"]) for name, stack in stacks.items()}

    def _variables(self, past: dict[str, dict[str, Array]]) -> dict[str, Any]:
        if self._length_B is None:
            return {"params": self._params}
        tree: dict[str, Any] = {"length": self._length_B}
        for name, stack in past.items():
            layers = stack["key"].shape[0]
            length_LB = jnp.broadcast_to(self._length_B, (layers, *self._length_B.shape))
            tree[name] = {"attn": {**stack, "length": length_LB}}
        return {"params": self._params, collections.PAST: tree}


def _take_slot(slots: Array, index: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(slots, index, 0, keepdims=False)


def _put_slot(slots: Array, new: Array, index: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(slots, new.astype(slots.dtype), index, 0)


def _append(entries: Array, new: Array, length_B: Array) -> Array:
    """Writes (…, B, H, 1, d) at place length_B of (…, B, H, S, d)."""
    row_B = jnp.arange(length_B.shape[0])
    # The indexed axes B and S come first in what is written.
    new_BxHd = jnp.moveaxis(new[..., 0, :], -3, 0)
    return entries.at[..., row_B, :, length_B, :].set(new_BxHd.astype(entries.dtype))
