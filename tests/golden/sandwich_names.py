"""Parameter names of the depth-recurrent model of arXiv:2502.05171 in this project's tree."""

from collections.abc import Mapping

import numpy as np

from looped_jax.interchange import huginn
from tests.golden.published import taken


def to_params(arrays: Mapping[str, np.ndarray], prefix: str = "param/") -> dict:
    """The nested parameter tree of the arrays whose names start with `prefix`, which are all used.

    Gradients (`prefix="grad/"`) map the same way.
    """
    return taken(huginn, arrays, prefix)
