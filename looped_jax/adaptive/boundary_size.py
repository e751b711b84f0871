"""How many slots should wait for each other before they go through the head together.

Coda and head take less time for C tokens at once than C times as long as for one, but slots that
wait do not loop. With S slots, m loops a token, t seconds a tick and b(C) a boundary, (C − 1) / 2
slots wait in the mean, so a token takes m t / (S − (C − 1) / 2) + b(C) / C seconds. t and b are
measured; b is taken as linear between C = 1 and S / 2.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.steps import EXITED, Choose, Slots, Steps, nothing_emitted
from looped_jax.model.config import ModelConfig

REPEATS = 5


def candidates(slots: int) -> list[int]:
    """Sizes to choose from: 1, and an eighth, a quarter and half of the slots."""
    return sorted({1, *(max(1, slots // part) for part in (8, 4, 2))})


def cheapest(slots: int, mean_loops: float, tick: float, boundary: dict[int, float]) -> int:
    """The candidate with the least time a token.

    Args:
      tick: seconds of one.
      boundary: seconds of one by its size, for two sizes or more (or one, if there is one slot).
    """
    sizes = sorted(boundary)

    def seconds(size: int) -> float:
        of_boundary = float(np.interp(size, sizes, [boundary[each] for each in sizes]))
        return mean_loops * tick / (slots - (size - 1) / 2) + of_boundary / size

    return min(candidates(slots), key=seconds)


def measure(
    model: ModelConfig,
    looks: Looks,
    choose: Choose,
    end_of_text: int,
    params: Any,
    slots: Slots,
    exits: Exits,
    knobs: Any,
) -> tuple[float, dict[int, float]]:
    """Seconds of a tick, and of a boundary by its size, on slots like these."""
    S = slots.status.shape[0]
    program = functools.partial(_program, model, looks, choose=choose, end_of_text=end_of_text)
    tick = _seconds(program(None), params, slots, exits, knobs)
    waiting = slots._replace(status=slots.status * 0 + EXITED)
    sizes = {1, max(1, S // 2)}
    return tick, {C: _seconds(program(C), params, waiting, exits, knobs) for C in sizes}


@functools.lru_cache(maxsize=32)
def _program(
    model: ModelConfig, looks: Looks, boundary: int | None, *, choose: Choose, end_of_text: int
) -> Callable[..., Slots]:
    """The compiled tick (None), or boundary of a size: (params, Slots, Exits, knobs) -> Slots."""
    steps = Steps(model, looks, boundary or 1, choose, end_of_text)

    @nn.logical_axis_rules(())
    def run(params, slots, exits, knobs):
        if boundary is None:
            return steps.tick(params, slots, exits)
        return steps.boundary(params, slots, nothing_emitted(boundary), exits, knobs)[0]

    return jax.jit(run, donate_argnums=1)


def _seconds(program: Callable[..., Slots], params: Any, slots: Slots, *arguments: Any) -> float:
    """The median of a few calls, each on slots of its own; the first, which compiles, left out."""
    seconds = []
    for _ in range(REPEATS + 1):
        own = jax.block_until_ready(jax.tree.map(lambda leaf: leaf.copy(), slots))
        began = time.perf_counter()
        jax.block_until_ready(program(params, own, *arguments))
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[1:]))
