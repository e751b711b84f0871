"""A tensor in a file: its shape and dtype are known, its numbers are read when they are needed."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Stored(NamedTuple):
    """One tensor of a checkpoint.

    A tuple, so that no pickle can change it once it was checked.

    Attributes:
      shape: its shape.
      dtype: the name of its dtype, as the file has it.
      read: reads its numbers; raises UserError if the file is damaged.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


def in_memory(array: np.ndarray) -> Stored:
    """An array that was read already."""
    return Stored(array.shape, array.dtype.name, lambda: array)
