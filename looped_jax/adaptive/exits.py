"""Which tokens exit after a loop: the rule as compiled programs see it."""

from typing import Any, NamedTuple

import jax

from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.model.frozen import FrozenModel

Array = jax.Array


class Exits(NamedTuple):
    """What of a rule is traced, so that one program serves all thresholds and depths.

    Attributes:
      threshold: tokens exit at or below it, float32.
      most: loop at which every token exits, int32.
      fitted: numbers that the signal was fitted with, or None.
      share: of a batch's tokens that have to have settled before all of them exit, float32; None
        where every token exits by itself.
    """

    threshold: Any
    most: Any
    fitted: Any = None
    share: Any = None


def look(
    frozen: FrozenModel,
    looks: Looks,
    exits: Exits,
    old: Array,
    new: Array,
    memory: Any,
    loop: Array,
) -> tuple[Array, Any]:
    """(which tokens exit (…), what their signal remembers).

    Args:
      old, new: states (…, D) before and after the loop.
      memory: what the signal remembers of the loops before.
      loop: its number from 1, a scalar or (…).
    """

    def readout(state: Array) -> Array:
        logits_1NV = frozen.readout(state.reshape(1, -1, state.shape[-1]))
        return logits_1NV.reshape(*state.shape[:-1], -1)

    value, memory = SIGNALS[looks.signal].step(readout, exits.fitted, old, new, memory)
    is_looked_at = (loop >= looks.first) & (loop % looks.every == 0)
    return is_looked_at & (value <= exits.threshold) | (loop >= exits.most), memory
