"""Writes files as torch.save does, without torch: a zip of a pickle and raw storages."""

import collections
import io
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

STORAGES = {
    np.dtype(np.float32): "FloatStorage",
    np.dtype(np.float64): "DoubleStorage",
    np.dtype(np.float16): "HalfStorage",
    np.dtype(ml_dtypes.bfloat16): "BFloat16Storage",
    np.dtype(np.int64): "LongStorage",
}


class View:
    """A tensor: a view of a storage, which is a flat array that tensors may share."""

    def __init__(self, storage: np.ndarray, shape, strides=None, offset=0):
        self.storage, self.shape, self.offset = storage, tuple(shape), offset
        self.strides = strides or tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def _torch_modules() -> dict[str, types.ModuleType]:
    """Just enough of torch's names for a pickler to write them down."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in STORAGES.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*_: Any) -> None:
        raise AssertionError("only named, never called")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild
    return {"torch": torch, "torch._utils": utils}


def pickled(content: Any) -> tuple[bytes, list[np.ndarray]]:
    """The bytes of data.pkl (protocol 2), and the storages in the order of their keys."""
    modules = _torch_modules()
    storages: list[np.ndarray] = []
    keys: dict[int, str] = {}

    class Storage:
        def __init__(self, array: np.ndarray):
            self.array = array

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            if not isinstance(thing, Storage):
                return None
            array = thing.array
            if id(array) not in keys:
                keys[id(array)] = str(len(storages))
                storages.append(array)
            kind = getattr(modules["torch"], STORAGES[array.dtype])
            return ("storage", kind, keys[id(array)], "cpu", array.size)

        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, np.ndarray):
                thing = View(np.ascontiguousarray(thing).reshape(-1), thing.shape)
            if not isinstance(thing, View):
                return NotImplemented
            arguments = (
                Storage(thing.storage), thing.offset, thing.shape, thing.strides, False,
                collections.OrderedDict(),
            )  # fmt: skip
            return modules["torch._utils"]._rebuild_tensor_v2, arguments

    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        file = io.BytesIO()
        Pickler(file, protocol=2).dump(content)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return file.getvalue(), storages


def save(content: Any, path: Path) -> Path:
    """What torch.save(content, path) writes; arrays and Views are tensors."""
    data, storages = pickled(content)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", b"little")
        for key, storage in enumerate(storages):
            archive.writestr(f"archive/data/{key}", storage.tobytes())
        archive.writestr("archive/version", b"3\n")
    return path


def state_dict(arrays: dict[str, np.ndarray]) -> collections.OrderedDict:
    """As module.state_dict() returns it: an OrderedDict with an attribute of versions."""
    content = collections.OrderedDict(arrays)
    content._metadata = collections.OrderedDict({"": {"version": 1}})
    return content


class Tensor:
    """What `load` makes of a tensor: where its numbers are, by its own reading of the file."""

    def __init__(self, storage, offset, size, stride, *_):
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride


def load(path: Path) -> Any:
    """What torch.load(path) reads, with arrays for tensors; shares no code with the project."""
    with zipfile.ZipFile(path) as archive:
        (root,) = {name.partition("/")[0] for name in archive.namelist()}
        assert archive.read(f"{root}/version") == b"3\n"
        assert archive.read(f"{root}/byteorder") == b"little"
        dtypes = {name: dtype for dtype, name in STORAGES.items()}

        class Unpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
                    return Tensor
                return dtypes[name] if module == "torch" else super().find_class(module, name)

            def persistent_load(self, pid: Any) -> Any:
                kind, dtype, key, device, count = pid
                assert (kind, device) == ("storage", "cpu")
                numbers = np.frombuffer(archive.read(f"{root}/data/{key}"), dtype)
                assert len(numbers) == count
                return numbers

        return _arrays(Unpickler(io.BytesIO(archive.read(f"{root}/data.pkl"))).load())


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(each) for key, each in value.items()}
    if not isinstance(value, Tensor):
        return value
    places = np.full(value.size, value.offset)
    for axis, (length, step) in enumerate(zip(value.size, value.stride, strict=True)):
        along = np.arange(length) * step
        places = places + along.reshape([-1 if i == axis else 1 for i in range(len(value.size))])
    return value.storage[places]
