"""Tensors from PyTorch's .pt files, without PyTorch and without running what a pickle asks for.

A file that torch.save wrote is a zip archive: `NAME/data.pkl` is a pickle of the saved object in
which tensors are calls of a rebuilding function, and `NAME/data/KEY` are their storages as raw
bytes. A pickle can name any function of any module to be called while it is read; here it can name
the few below, which build arrays and nothing else, and every other name is refused.
"""

import collections
import contextlib
import dataclasses
import io
import math
import pickle
import pickletools
import reprlib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from looped_jax.errors import UserError
from looped_jax.interchange.stored import Stored

# Storage classes of torch, and the numpy dtype of their numbers.
STORAGES: dict[str, Any] = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
MOST_DIMENSIONS = 8
MOST_NUMBERS = 1 << 48  # far above any model, and far below what overflows
MOST_PICKLE_BYTES = 1 << 26
MOST_SHOWN = 200  # characters of a stranger's text in a message


@dataclasses.dataclass(frozen=True)
class TorchFile:
    """What a file of torch.save holds.

    Attributes:
      tensors: the state dict, by name.
      beside: the file's other entries (a config, a step) if the state dict is one entry of several.
    """

    tensors: dict[str, Stored]
    beside: dict[str, Any]


def read(path: Path, entry: str | None = None, usual_entry: str | None = None) -> TorchFile:
    """The state dict in a .pt file; its numbers are read later, tensor by tensor.

    Args:
      entry: the name under which it stands, if the file holds a dict of more than tensors.
      usual_entry: the name to try in such a file if `entry` is None.

    Raises:
      UserError: not a file of torch.save, damaged or cut off, or a pickle that holds anything but
        tensors by name, and by the side of them plain values.
    """
    with _readable(path):
        content = _Reader(path, zipfile.ZipFile(path)).load()
    if entry is None and isinstance(content, dict) and usual_entry in content:
        entry = usual_entry
    return _state_dict(path, content, entry)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what a missing or damaged file raises into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"{path} is no whole zip file of torch.save ({error}): it is damaged, cut off, or was "
            "written before PyTorch 1.6"
        ) from error


# What a pickle gets hold of are tuples: it can set attributes of any other object.
class _Storage(NamedTuple):
    """A member of the archive: raw numbers that tensors are views of."""

    name: str
    dtype: np.dtype
    length: int


class _StorageClass(NamedTuple):
    dtype: np.dtype


class _Reader:
    """One archive: its pickle, and the storages that the pickle refers to."""

    def __init__(self, path: Path, archive: zipfile.ZipFile):
        self._path, self._archive = path, archive
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise UserError(f"{path} is a zip file, but not one of torch.save: no data.pkl in it")
        self._root = pickles[0].removesuffix("data.pkl")
        order = f"{self._root}byteorder"
        if order in archive.namelist() and (found := self._small(order)) != b"little":
            raise UserError(f"{path} has byte order {found[:16]!r}; allowed: b'little'")

    def _small(self, name: str) -> bytes:
        """A member that is read whole; it may not be one that unfolds to fill the memory."""
        info = self._archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > MOST_PICKLE_BYTES:
            raise UserError(
                f"{self._path}: {name} is compressed or has {info.file_size} bytes; allowed: as "
                f"torch.save writes it, up to {MOST_PICKLE_BYTES} bytes"
            )
        return self._archive.read(name)

    def load(self) -> Any:
        pickled = self._small(f"{self._root}data.pkl")
        try:
            _check_sizes(pickled)
            return _Unpickler(io.BytesIO(pickled), self).load()
        except (UserError, OSError, zipfile.BadZipFile):
            raise
        except Exception as error:  # a damaged pickle can fail in any way
            raise UserError(
                f"{self._path} holds a pickle that is damaged or not of tensors only: "
                f"{type(error).__name__}: {_shown(error, str)}"
            ) from error

    def refuse(self, what: str) -> UserError:
        return UserError(
            f"{self._path} holds {what}; allowed: tensors by name, as "
            "torch.save(model.state_dict()) writes them (nothing in the file was run)"
        )

    def storage(self, key: str, dtype: np.dtype, count: int) -> _Storage:
        """The storage that a pickle refers to, held to the bytes that are there.

        A pickle may refer to one storage many times; every reference has to tell the truth.
        """
        name = f"{self._root}data/{key}"
        try:
            info = self._archive.getinfo(name)
        except KeyError:
            raise UserError(f"{self._path} is damaged: it lacks storage {name}") from None
        if info.compress_type != zipfile.ZIP_STORED:
            raise UserError(
                f"{self._path}: storage {name} is compressed; allowed: as torch.save writes it"
            )
        needed = count * dtype.itemsize
        if info.file_size != needed or needed > self._path.stat().st_size:
            raise UserError(
                f"{self._path} is damaged: storage {name} has {info.file_size} bytes "
                f"instead of {needed}"
            )
        return _Storage(name, dtype, count)

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Stored:
        """What torch._utils._rebuild_tensor_v2 does: a view of a storage, read when asked for."""
        is_view = (
            isinstance(storage, _Storage)
            and all(isinstance(part, tuple) for part in (size, stride))
            and len(size) == len(stride) <= MOST_DIMENSIONS
            and all(type(n) is int and 0 <= n < MOST_NUMBERS for n in (offset, *size, *stride))
        )
        if not is_view:
            raise self.refuse(f"a tensor of size {_shown(size)} that is none")
        numbers = math.prod(size)
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if numbers and last >= storage.length:
            raise UserError(
                f"{self._path} is damaged: a tensor of {tuple(size)} reaches beyond its storage"
            )
        if numbers > storage.length:
            raise UserError(
                f"{self._path}: a tensor of {tuple(size)} has more numbers than the "
                f"{storage.length} of its storage (an expanded view); allowed: no more"
            )
        return Stored(
            tuple(size), storage.dtype.name, lambda: self._read(storage, offset, size, stride)
        )

    def _read(
        self, storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
    ) -> np.ndarray:
        with _readable(self._path):
            numbers_N = np.frombuffer(self._archive.read(storage.name), storage.dtype)
        if len(numbers_N) != storage.length:
            raise UserError(f"{self._path} is damaged: storage {storage.name} is cut off")
        # Within the array by the checks of `tensor`: it was held to this count of numbers.
        steps = [step * numbers_N.itemsize for step in stride]
        view = np.lib.stride_tricks.as_strided(numbers_N[offset:], size, steps, writeable=False)
        return np.ascontiguousarray(view).reshape(size)


def _check_sizes(pickled: bytes) -> None:
    """Raises ValueError for a pickle that claims more than it holds.

    The unpickler makes room for a text, or for a number in its memo, before it looks at what comes.
    """
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(pickled):
            raise ValueError(f"memo {argument} of a pickle of {len(pickled)} bytes")


class _Unpickler(pickle.Unpickler):
    """Unpickles arrays, numbers, texts and plain containers; refuses every other name."""

    def __init__(self, file: Any, reader: _Reader):
        super().__init__(file)
        self._reader = reader

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return self._reader.tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return _parameter
        if module == "torch" and name in STORAGES:
            return _StorageClass(np.dtype(STORAGES[name]))
        if (module, name) == ("torch", "Size"):
            return tuple
        if name == "_rebuild_tensor_v3" or (module == "torch" and name.startswith("float8")):
            raise self._reader.refuse("tensors of 8-bit floats (fp8) or another dtype of its own")
        raise self._reader.refuse("the Python object " + _shown(f"{module}.{name}", str))

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _StorageClass(dtype), str(key), _, int(count)) if count >= 0:
                return self._reader.storage(key, dtype, count)
        raise self._reader.refuse(f"a reference {_shown(pid)} that is no storage of numbers")


def _parameter(tensor: Stored, *_: Any) -> Stored:
    return tensor


def _state_dict(path: Path, content: Any, entry: str | None) -> TorchFile:
    """Checks that what was pickled is tensors by name, or that one entry of it is."""
    beside: dict[str, Any] = {}
    if entry is not None:
        if not (isinstance(content, dict) and entry in content):
            names = ", ".join(map(repr, content)) if isinstance(content, dict) else "none"
            raise UserError(f"{path} has no entry {entry!r}; allowed: {_shown(names, str)}")
        beside = {str(name): value for name, value in content.items() if name != entry}
        content = content[entry]
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}; allowed: tensors by name")
    for name, value in content.items():
        if isinstance(name, str) and isinstance(value, Stored):
            continue
        hint = ""
        if isinstance(value, dict):
            dicts = [str(key) for key, other in content.items() if isinstance(other, dict)]
            hint = f" (choose the model's with --entry=NAME: {_shown(', '.join(dicts), str)})"
        raise UserError(
            f"{path} holds {_shown(name)}, a {_kind(value)}; allowed: tensors by name{hint}"
        )
    return TorchFile(dict(content), beside)


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, Stored) else type(value).__name__


def _shown(value: Any, text: Callable[[Any], str] = reprlib.repr) -> str:
    """For a message: in one line, and not longer than that."""
    line = " ".join(text(value).split())
    return line if len(line) <= MOST_SHOWN else line[:MOST_SHOWN] + "…"
