"""The tensors of a checkpoint, each to be taken exactly once."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the dtype bfloat16 by name)
import numpy as np

from looped_jax.errors import UserError
from looped_jax.interchange import safetensors_files, torch_files
from looped_jax.interchange.stored import Stored, in_memory

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")

# What stands beside a model in its folder and is none.
NO_MODELS = ("optim", "scheduler", "rng_state", "training_args")

# torch.compile, sharding and recomputation put these into the names of the modules they wrap, at
# any depth and in any order; DistributedDataParallel puts "module." before all names.
_WRAPPER = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_PARALLEL = "module."

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_MAX_NAMED = 5


def open_tensors(path: Path, entry: str | None = None, usual_entry: str | None = None) -> "Tensors":
    """The tensors of a .pt file, a .safetensors file, an index of shards, or a folder with either.

    Args:
      entry: of a .pt file that holds more than a state dict, the entry to take.
      usual_entry: the entry to take of such a file if `entry` is None.

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
        content = torch_files.read(path, entry, usual_entry)
        return Tensors(content.tensors, path, content.beside)
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
    """The one checkpoint in a folder; links to it and what else training saved do not count."""
    suffixes = (safetensors_files.INDEX_SUFFIX, safetensors_files.SUFFIX, *TORCH_SUFFIXES)
    for suffix in suffixes:
        found = {
            file.resolve(): file
            for file in sorted(folder.glob(f"*{suffix}"), key=lambda file: not file.is_symlink())
            if not file.name.startswith(NO_MODELS)
        }
        if len(found) == 1:
            return found.popitem()[1]
        if found:
            raise UserError(f"{folder} holds {len(found)} files *{suffix}: name the one to import")
    raise UserError(f"{folder} holds no checkpoint (.safetensors or {', '.join(TORCH_SUFFIXES)})")


class Tensors:
    """Tensors by name; what is taken is gone, what is left over at the end is an error.

    Attributes:
      source: the file or index they are from.
      files: all files they are from, and the config beside them once it was read.
      beside: what else a file of torch.save holds, by name: a config, a step.
      dropped: names of the tensors that were taken for nothing.
      notes: lines about what was taken on trust.
    """

    def __init__(
        self,
        tensors: Mapping[str, Stored | np.ndarray],
        source: Path,
        beside: Mapping[str, Any] | None = None,
    ):
        self.source = source
        self.files = files_of(source)
        self.beside = beside or {}
        self.dropped: list[str] = []
        self.notes: list[str] = []
        self._tensors = {
            name: in_memory(tensor) if isinstance(tensor, np.ndarray) else tensor
            for name, tensor in _unwrapped(tensors, source).items()
        }

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str, dimensions: int | None = None) -> tuple[int, ...]:
        """Shape of a tensor that is not taken yet.

        Raises:
          UserError: there is none of that name, or it has not so many dimensions.
        """
        shape = self._found(name).shape
        if dimensions is not None and len(shape) != dimensions:
            raise UserError(
                f"{self.source}: tensor {name} has shape {shape}; allowed: {dimensions} dimensions"
            )
        return shape

    def take(self, name: str) -> np.ndarray:
        """The tensor as float32; it cannot be taken again.

        Raises:
          UserError: there is none of that name, or its numbers are not floating-point or finite.
        """
        array = self.peek(name)
        del self._tensors[name]
        return array

    def peek(self, name: str) -> np.ndarray:
        """The tensor as float32, which can still be taken. Raises UserError as `take` does."""
        stored = self._found(name)
        if stored.dtype not in _FLOATS:
            raise UserError(
                f"{self.source}: tensor {name} is {stored.dtype}; allowed: floating-point numbers "
                f"({', '.join(_FLOATS)})"
            )
        array = stored.read().astype(np.float32)
        if bad := array.size - np.count_nonzero(np.isfinite(array)):
            raise UserError(
                f"{self.source}: tensor {name} has {bad} of {array.size} numbers that are not "
                "finite (in float32); allowed: finite weights"
            )
        return array

    def drop(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Takes a tensor that no logit depends on; its shape has to be this one.

        Raises:
          UserError: as `take` does, or it has another shape.
        """
        if self.shape(name) != shape:
            raise UserError(
                f"{self.source}: tensor {name} has shape {self.shape(name)}; allowed: {shape}"
            )
        self.dropped.append(name)
        return self.take(name)

    def take_joined(self, *names: str) -> np.ndarray:
        """Matrices (out, in) of one shape as one kernel (in, number of them, out).

        Raises:
          UserError: as `take` does, or their shapes differ.
        """
        shapes = {name: self.shape(name, 2) for name in names}
        if len(set(shapes.values())) > 1:
            told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise UserError(f"{self.source}: tensors differ in shape: {told}; allowed: one shape")
        return np.stack([self.take(name).T for name in names], axis=1)

    def take_folded(self, name: str, parts: int) -> np.ndarray:
        """A matrix (parts · out, in) as a kernel (in, parts, out).

        Raises:
          UserError: as `take` does, or its rows cannot be divided so.
        """
        rows, columns = self.shape(name, 2)
        if rows % parts:
            raise UserError(
                f"{self.source}: tensor {name} has {rows} rows; allowed: a multiple of {parts}"
            )
        return self.take(name).T.reshape(columns, parts, rows // parts)

    def count(self, prefix: str) -> int:
        """How many layers `prefix`0., `prefix`1., … there are."""
        numbered = re.compile(re.escape(prefix) + r"(\d+)\.")
        found = {int(match[1]) for name in self._tensors if (match := numbered.match(name))}
        return len(found)

    def layers(self, prefix: str, layer: Callable[[str], Any]) -> Any:
        """`layer(prefix of one layer)` of all layers, stacked on axis 0 leaf by leaf."""
        return _stacked([layer(f"{prefix}{i}.") for i in range(self.count(prefix))])

    def finish(self, format_name: str) -> None:
        """Raises UserError if tensors are left over."""
        if self._tensors:
            raise UserError(
                f"{self.source} has tensors that format {format_name!r} does not know: "
                f"{_named(sorted(self._tensors))}"
            )

    def _found(self, name: str) -> Stored:
        if name not in self._tensors:
            have = _named(sorted(self._tensors)) or "none"
            raise UserError(f"{self.source} has no tensor {name!r} (it has: {have})")
        return self._tensors[name]


def refuse_grouped_heads(tensors: Tensors, name: str, rows: int, expected: int) -> None:
    """Raises UserError if the named map makes fewer keys and values than queries."""
    if rows != expected:
        raise UserError(
            f"{tensors.source}: tensor {name} has {rows} rows where as many heads of keys and "
            f"values as of queries need {expected}; grouped key and value heads (GQA) are not "
            "supported"
        )


def unstacked(layers: Any) -> list[Any]:
    """The layers of a stack, a tree each; none of a stack that is not there."""
    if layers is None:
        return []
    if isinstance(layers, Mapping):
        parts = {key: unstacked(value) for key, value in layers.items()}
        return [dict(zip(parts, each, strict=True)) for each in zip(*parts.values(), strict=True)]
    return list(layers)


def _unwrapped(
    tensors: Mapping[str, Stored | np.ndarray], source: Path
) -> dict[str, Stored | np.ndarray]:
    """The tensors under the names that their modules gave them."""
    found: dict[str, Stored | np.ndarray] = {}
    for name, tensor in tensors.items():
        found[_WRAPPER.sub("", name)] = tensor
    while found and all(name.startswith(_PARALLEL) for name in found):
        found = {name.removeprefix(_PARALLEL): tensor for name, tensor in found.items()}
    if len(found) < len(tensors):
        raise UserError(f"{source} holds a tensor twice, once wrapped and once not")
    return found


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    more = len(names) - _MAX_NAMED
    return shown + (f" and {more} more" if more > 0 else "")


def _stacked(layers: list[Any]) -> Any:
    if isinstance(layers[0], dict):
        return {key: _stacked([layer[key] for layer in layers]) for key in layers[0]}
    shapes = {layer.shape for layer in layers}
    if len(shapes) > 1:
        raise UserError(f"layers of one stack differ in shape: {' and '.join(map(str, shapes))}")
    return np.stack(layers)
