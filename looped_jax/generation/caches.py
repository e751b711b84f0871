"""Caches of keys and values for a looped model: what is kept of which recurrence, and its memory.

A token passes the block r times and has other keys and values each time. Two ways to keep them:

every_recurrence  a slot for each recurrence: a new token's recurrence i attends to what recurrence
                  i of the earlier tokens left. Exactly the model without a cache.
last_recurrence   one slot: a new token attends, in all its recurrences, to what the last recurrence
                  of the earlier tokens left. An r-th of the memory, and another model: an
                  approximation whose quality depends on how far the states have settled. The
                  prompt itself is run exactly.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.model import cache
from looped_jax.model.cache import KeysValues
from looped_jax.model.config import ModelConfig

Array = jax.Array

KINDS = ("every_recurrence", "last_recurrence")


class Cache(NamedTuple):
    """Keys and values of the tokens so far.

    Attributes:
      length: tokens held, int32 (B,).
      stacks: of "prelude", "core" and "coda"; a stack without layers has arrays without entries.
    """

    length: Any
    stacks: dict[str, KeysValues]


def count_slots(kind: str, recurrences: int) -> int:
    """Slots of the core that tokens of so many recurrences need."""
    return recurrences if kind == "every_recurrence" else 1


def empty(model: ModelConfig, slots: int, batch: int, capacity: int) -> Cache:
    """A cache that holds no token yet."""
    return Cache(jnp.zeros(batch, jnp.int32), cache.empty(model, slots, batch, capacity))


def count_bytes(model: ModelConfig, slots: int, batch: int, capacity: int) -> int:
    """Memory of the keys and values in bytes."""
    numbers = sum(
        math.prod(shape) for shape in cache.shapes(model, slots, batch, capacity).values()
    )
    return 2 * numbers * jnp.dtype(model.compute_dtype).itemsize


def describe(model: ModelConfig, kind: str, slots: int, batch: int, capacity: int) -> str:
    """One line that says what the cache is and what it takes."""
    once = model.prelude_layers + model.coda_layers
    size = count_bytes(model, slots, batch, capacity) / 2**20
    recurrences = f"{slots} recurrences" if slots > 1 else "1 recurrence"
    return (
        f"cache {kind}: {recurrences} of {model.core_layers} layers + {once} layers once, "
        f"{batch} x {capacity} tokens: {size:.3g} MiB"
    )
