"""Tensors into PyTorch's .pt files, as torch.save writes them, without PyTorch.

A zip archive of `NAME/data.pkl`, `NAME/data/0` … (the numbers of each tensor, little-endian),
`NAME/byteorder` and `NAME/version`; see `torch_files`, which reads them.
"""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.files import replacing

# Opcodes of pickle's protocol 2, and the functions of torch that they name.
_PROTOCOL, _STOP = b"\x80\x02", b"."
_MARK, _TUPLE, _REDUCE, _SET_ITEMS, _PERSISTENT = b"(", b"t", b"R", b"u", b"Q"
_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
_STORAGE = b"ctorch\nFloatStorage\n"
_ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Writes what `torch.save(content, path)` would; arrays become float32 tensors.

    Args:
      content: arrays by name, or such mappings and plain values (numbers, texts, None) by name.
    """
    tensors: list[np.ndarray] = []
    pickled = _PROTOCOL + _pickled(content, tensors) + _STOP
    root = path.stem
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/data.pkl", pickled)
        archive.writestr(f"{root}/byteorder", b"little")
        for key, tensor in enumerate(tensors):
            info = zipfile.ZipInfo(f"{root}/data/{key}")
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(np.ascontiguousarray(tensor, "<f4").tobytes())
        archive.writestr(f"{root}/version", b"3\n")


def _pickled(value: Any, tensors: list[np.ndarray]) -> bytes:
    """The opcodes that build a value; its arrays are added to `tensors`, in the order of keys."""
    if isinstance(value, Mapping):
        items = b"".join(
            _pickled(name, tensors) + _pickled(each, tensors) for name, each in value.items()
        )
        return _ORDERED_DICT + _MARK + items + _SET_ITEMS
    if isinstance(value, np.ndarray):
        return _tensor(value, tensors)
    if isinstance(value, str):
        text = value.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value) if abs(value) < 1 << 31 else _long(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    raise TypeError(f"a {type(value).__name__} cannot be written: {value!r}")


def _tensor(array: np.ndarray, tensors: list[np.ndarray]) -> bytes:
    """A contiguous tensor with a storage of its own."""
    key = str(len(tensors))
    tensors.append(array)
    put = lambda value: _pickled(value, tensors)
    strides = [int(np.prod(array.shape[i + 1 :])) for i in range(array.ndim)]
    storage = b"".join(
        [
            _MARK,
            put("storage"),
            _STORAGE,
            put(key),
            put("cpu"),
            put(array.size),
            _TUPLE,
            _PERSISTENT,
        ]
    )
    integers = lambda numbers: _MARK + b"".join(map(put, numbers)) + _TUPLE
    arguments = [
        storage, put(0), integers(array.shape), integers(strides), put(False), _ORDERED_DICT,
    ]  # fmt: skip
    return _REBUILD + _MARK + b"".join(arguments) + _TUPLE + _REDUCE


def _long(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
