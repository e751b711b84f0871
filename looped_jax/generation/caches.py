"""Caches of keys and values for a looped model: what is kept of which recurrence, and its memory.

A token passes the block r times and has other keys and values each time. Two ways to keep them:

every_recurrence  a slot for each recurrence: a new token's recurrence i attends to what recurrence
                  i of the earlier tokens left. Exactly the model without a cache.
last_recurrence   one slot: a new token attends, in all its recurrences, to what the last recurrence
                  of the earlier tokens left. An r-th of the memory, and another model: an
                  approximation whose quality depends on how far the states have settled. The
                  prompt itself is run exactly.

With exits a token's entries of its last loop stand for all deeper ones: every_recurrence copies
them there, which is what scoring with exits computes; last_recurrence stays an approximation.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.adaptive.memory import MOST_OF_FREE_FOR_SIGNAL
from looped_jax.errors import UserError
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


def count_kept(kind: str, recurrences: int) -> int:
    """Recurrences that the cache keeps of tokens that run so many."""
    return recurrences if kind == "every_recurrence" else 1


def empty(model: ModelConfig, kept: int, batch: int, capacity: int) -> Cache:
    """A cache that holds no token yet."""
    return Cache(jnp.zeros(batch, jnp.int32), cache.empty(model, kept, batch, capacity))


def count_bytes(model: ModelConfig, kept: int, batch: int, capacity: int) -> int:
    """Memory of the keys and values in bytes."""
    numbers = sum(math.prod(shape) for shape in cache.shapes(model, kept, batch, capacity).values())
    return 2 * numbers * jnp.dtype(model.compute_dtype).itemsize


def describe(model: ModelConfig, kind: str, kept: int, batch: int, capacity: int) -> str:
    """One line that says what the cache is and what it takes."""
    once = model.prelude_layers + model.coda_layers
    size = count_bytes(model, kept, batch, capacity) / 2**20
    recurrences = f"{kept} recurrences" if kept > 1 else "1 recurrence"
    return (
        f"cache {kind}: {recurrences} of {model.core_layers} layers + {once} layers once, "
        f"{batch} x {capacity} tokens: {size:.3g} MiB"
    )


def check_memory(
    model: ModelConfig, kind: str, kept: int, batch: int, capacity: int, free: int
) -> None:
    """Raises UserError for a cache that does not fit into `free` bytes."""
    needed = count_bytes(model, kept, batch, capacity)
    if needed <= free:
        return
    ways = "fewer prompts or slots, a shorter context"
    if kind == "every_recurrence":
        ways += " or --cache=last_recurrence"
    raise UserError(
        f"cache of {kept} x {batch} x {capacity} tokens = {_gibibytes(needed)}; free "
        f"{_gibibytes(free)}: {ways}"
    )


def check_signal_memory(signal: str, n_bytes: int, free: int) -> None:
    """Raises UserError where what a signal remembers takes more than a quarter of free memory."""
    if n_bytes > MOST_OF_FREE_FOR_SIGNAL * free:
        raise UserError(
            f"exit {signal!r} remembers {_gibibytes(n_bytes)}; allowed: up to a quarter of the "
            f"{_gibibytes(free)} that are free: fewer slots, or an exit that looks at the state"
        )


def _gibibytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.3g} GiB"
