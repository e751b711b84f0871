"""Parameter trees whose leaves carry logical axis names, and the arrays inside."""

from typing import Any

import flax.linen as nn
import jax


def is_boxed(leaf: Any) -> bool:
    """Whether a leaf is an array (or shape) with logical axis names around it."""
    return isinstance(leaf, nn.LogicallyPartitioned)


def unboxed(boxed_params: Any) -> Any:
    """The arrays of a tree of parameters that carries logical axis names.

    Unlike flax's own unboxing it adds no sharding constraint: jit's out_shardings decide.
    """
    return jax.tree.map(lambda leaf: leaf.value, boxed_params, is_leaf=is_boxed)
