"""The tensors of a checkpoint, each to be taken exactly once."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from looped_jax.errors import UserError
from looped_jax.interchange import safetensors_files, torch_files

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")

# What wrappers of a module put before all of its names.
WRAPPERS = ("_orig_mod.", "module.")

_FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
_MAX_NAMED = 5


def open_tensors(path: Path, entry: str | None = None) -> "Tensors":
    """The tensors of a .pt file, a .safetensors file, an index of shards, or a folder with either.

    Args:
      entry: of a .pt file that holds more than a state dict, the entry to take.

    Raises:
      UserError: nothing of the kind there, or it cannot be read.
    """
    if path.is_dir():
        path = _within(path)
    if path.name.endswith((safetensors_files.SUFFIX, safetensors_files.INDEX_SUFFIX)):
        if entry is not None:
            raise UserError(f"--entry={entry}: allowed for .pt files, not for {path}")
        return Tensors(safetensors_files.read(path), path)
    if path.suffix in TORCH_SUFFIXES:
        return Tensors(torch_files.read(path, entry), path)
    raise UserError(
        f"{path} is of no known kind; allowed: {', '.join(TORCH_SUFFIXES)}, .safetensors, "
        ".safetensors.index.json, or a folder with one of these"
    )


def files_of(source: Path) -> list[Path]:
    """A file, or an index and its shards."""
    if not source.name.endswith(safetensors_files.INDEX_SUFFIX):
        return [source]
    return [source, *safetensors_files.shards_of(source)]


def _within(folder: Path) -> Path:
    for pattern in (f"*{safetensors_files.INDEX_SUFFIX}", f"*{safetensors_files.SUFFIX}", "*.pt"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"{folder} holds {len(found)} files {pattern}: name the one to import")
    raise UserError(f"{folder} holds no checkpoint (.safetensors or .pt)")


class Tensors:
    """Tensors by name; what is taken is gone, what is left over at the end is an error.

    Attributes:
      source: the file or index they are from.
      files: all files they are from.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], source: Path):
        arrays = dict(arrays)
        for wrapper in WRAPPERS:
            if arrays and all(name.startswith(wrapper) for name in arrays):
                arrays = {name.removeprefix(wrapper): value for name, value in arrays.items()}
        self._arrays, self.source = arrays, source
        self.files = files_of(source)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that is not taken yet."""
        return self._found(name).shape

    def take(self, name: str) -> np.ndarray:
        """The tensor as float32; it cannot be taken again.

        Raises:
          UserError: there is none of that name, or its numbers are not floating-point.
        """
        array = self._found(name)
        del self._arrays[name]
        if array.dtype not in _FLOATS:
            raise UserError(
                f"{self.source}: tensor {name} is {array.dtype}; allowed: floating-point numbers"
            )
        return array.astype(np.float32)

    def count(self, prefix: str) -> int:
        """How many layers `prefix`0., `prefix`1., … there are."""
        numbered = re.compile(re.escape(prefix) + r"(\d+)\.")
        found = {int(match[1]) for name in self._arrays if (match := numbered.match(name))}
        return len(found)

    def layers(self, prefix: str, layer: Callable[[str], Any]) -> Any:
        """`layer(prefix of one layer)` of all layers, stacked on axis 0 leaf by leaf."""
        return _stacked([layer(f"{prefix}{i}.") for i in range(self.count(prefix))])

    def finish(self, format_name: str) -> None:
        """Raises UserError if tensors are left over."""
        if self._arrays:
            raise UserError(
                f"{self.source} has tensors that format {format_name!r} does not know: "
                f"{_named(sorted(self._arrays))}"
            )

    def _found(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            have = _named(sorted(self._arrays)) or "none"
            raise UserError(f"{self.source} has no tensor {name!r} (it has: {have})")
        return self._arrays[name]


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    more = len(names) - _MAX_NAMED
    return shown + (f" and {more} more" if more > 0 else "")


def _stacked(layers: list[Any]) -> Any:
    if isinstance(layers[0], dict):
        return {key: _stacked([layer[key] for layer in layers]) for key in layers[0]}
    return np.stack(layers)
