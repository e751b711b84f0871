"""Arrays under published names, as the import maps them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.interchange.tensors import Tensors


def taken(format_module: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> dict:
    """The parameter tree of the arrays whose names start with `prefix`, which are all used."""
    named = {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
    tensors = Tensors(named, Path("golden"))
    params = format_module.params(tensors)
    tensors.finish(format_module.NAME)
    return params
