"""Tensors from PyTorch's .pt files, without PyTorch and without running what a pickle asks for.

A file that torch.save wrote is a zip archive: `NAME/data.pkl` is a pickle of the saved object in
which tensors are calls of a rebuilding function, and `NAME/data/KEY` are their storages as raw
bytes. A pickle can name any function of any module to be called while it is read; here it can name
the few below, which build arrays and nothing else, and every other name is refused.
"""

import collections
import dataclasses
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from looped_jax.errors import UserError

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


def read(path: Path, entry: str | None = None) -> dict[str, np.ndarray]:
    """The state dict in a .pt file: {name: array}.

    Args:
      entry: the name under which it stands, if the file holds a dict of more than tensors.

    Raises:
      UserError: not a file of torch.save, damaged or cut off, or a pickle that holds anything but
        tensors by name.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            content = _Reader(path, archive).load()
            return _state_dict(path, content, entry)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"{path} is no whole zip file of torch.save ({error}): it is damaged, cut off, or was "
            "written before PyTorch 1.6"
        ) from error


@dataclasses.dataclass(frozen=True)
class _Storage:
    """A storage as the pickle names it: raw numbers that tensors are views of."""

    key: str
    dtype: np.dtype
    count: int


@dataclasses.dataclass(frozen=True)
class _StorageClass:
    dtype: np.dtype


class _Reader:
    """One archive: its pickle, and the storages that the pickle refers to."""

    def __init__(self, path: Path, archive: zipfile.ZipFile):
        self._path, self._archive = path, archive
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise UserError(f"{path} is a zip file, but not one of torch.save: no data.pkl in it")
        self._root = pickles[0].removesuffix("data.pkl")
        self._storages: dict[str, np.ndarray] = {}
        order = f"{self._root}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise UserError(f"{path} has byte order {archive.read(order)!r}; allowed: b'little'")

    def load(self) -> Any:
        with self._archive.open(f"{self._root}data.pkl") as file:
            unpickler = _Unpickler(file, self)
            try:
                return unpickler.load()
            except (UserError, OSError, zipfile.BadZipFile):
                raise
            except Exception as error:  # a damaged pickle can fail in any way
                raise UserError(
                    f"{self._path} holds a pickle that is damaged or not of tensors only: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def refuse(self, what: str) -> UserError:
        return UserError(
            f"{self._path} holds {what}; allowed: tensors by name, as "
            "torch.save(model.state_dict()) writes them (nothing in the file was run)"
        )

    def storage(self, wanted: _Storage) -> np.ndarray:
        """The numbers of a storage, read once."""
        if wanted.key not in self._storages:
            name = f"{self._root}data/{wanted.key}"
            try:
                info = self._archive.getinfo(name)
            except KeyError:
                raise UserError(f"{self._path} is damaged: it lacks storage {name}") from None
            needed = wanted.count * wanted.dtype.itemsize
            if info.file_size != needed:
                raise UserError(
                    f"{self._path} is damaged: storage {name} has {info.file_size} bytes "
                    f"instead of {needed}"
                )
            raw = self._archive.read(name)
            self._storages[wanted.key] = np.frombuffer(raw, wanted.dtype)
        return self._storages[wanted.key].view(wanted.dtype)

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> np.ndarray:
        """What torch._utils._rebuild_tensor_v2 does: a view of a storage; a copy here."""
        numbers = (offset, *size, *stride)
        is_whole = all(type(n) is int and n >= 0 for n in numbers) and len(size) == len(stride)
        if not (isinstance(storage, _Storage) and is_whole):
            raise self.refuse(f"a tensor of size {size} that is none")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if math.prod(size) and last >= storage.count:
            raise UserError(
                f"{self._path} is damaged: a tensor of {tuple(size)} reaches beyond its storage"
            )
        numbers_N = self.storage(storage)
        steps = [step * numbers_N.itemsize for step in stride]
        view = np.lib.stride_tricks.as_strided(numbers_N[offset:], size, steps, writeable=False)
        return np.ascontiguousarray(view).reshape(size)


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
        raise self._reader.refuse(f"the Python object {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _StorageClass(dtype), str(key), _, int(count)) if count >= 0:
                return _Storage(key, dtype, count)
        raise self._reader.refuse(f"a reference {pid!r} that is no storage of numbers")


def _parameter(tensor: np.ndarray, *_: Any) -> np.ndarray:
    return tensor


def _state_dict(path: Path, content: Any, entry: str | None) -> dict[str, np.ndarray]:
    """Checks that what was pickled is tensors by name."""
    if entry is not None:
        if not (isinstance(content, dict) and entry in content):
            names = ", ".join(map(repr, content)) if isinstance(content, dict) else "none"
            raise UserError(f"{path} has no entry {entry!r}; allowed: {names}")
        content = content[entry]
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}; allowed: tensors by name")
    for name, value in content.items():
        if not (isinstance(name, str) and isinstance(value, np.ndarray)):
            hint = ""
            if isinstance(value, dict):
                dicts = [str(key) for key, other in content.items() if isinstance(other, dict)]
                hint = f" (choose the model's with --entry=NAME: {', '.join(dicts)})"
            raise UserError(
                f"{path} holds {name!r}, a {type(value).__name__}; allowed: tensors by name{hint}"
            )
    return dict(content)
