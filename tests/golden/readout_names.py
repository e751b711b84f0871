"""Parameter names of the published readout model (arXiv:2606.24898) in this project's tree."""

from collections.abc import Mapping

import numpy as np

from looped_jax.interchange import readout
from tests.golden.published import taken


def to_params(arrays: Mapping[str, np.ndarray], prefix: str = "param/") -> dict:
    """The nested parameter tree of the arrays whose names start with `prefix`, which are all used.

    Gradients (`prefix="grad/"`) map the same way.
    """
    return taken(readout, arrays, prefix)
