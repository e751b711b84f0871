"""Tensors in safetensors files: one file, or shards that an index holds together."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json
from looped_jax.interchange.stored import Stored

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
NAME = "model"
# What the format calls the dtypes that NumPy has, too.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def read(path: Path) -> dict[str, Stored]:
    """All tensors of a file, or of the shards that an index names; read later, one by one.

    Raises:
      UserError: a file is missing, damaged or cut off, or the index and the shards disagree.
    """
    if not path.name.endswith(INDEX_SUFFIX):
        return _read_one(path)
    places = _places(path)
    tensors: dict[str, Stored] = {}
    for shard in sorted(set(places.values())):
        expected = {name for name, place in places.items() if place == shard}
        found = _read_one(path.parent / shard)
        if different := expected ^ set(found):
            raise UserError(
                f"{path.parent / shard} and {path.name} disagree on tensor "
                f"{min(different)!r}: one of them is of another checkpoint"
            )
        tensors |= dict(sorted(found.items()))
    return tensors


def _read_one(path: Path) -> dict[str, Stored]:
    def stored(file: Any, name: str) -> Stored:
        described = file.get_slice(name)
        code = described.get_dtype()
        return Stored(
            tuple(described.get_shape()), DTYPES.get(code, code), lambda: _tensor(path, name)
        )

    with _opened(path) as file:
        return {name: stored(file, name) for name in file.keys()}  # noqa: SIM118


def _tensor(path: Path, name: str) -> np.ndarray:
    with _opened(path) as file:
        return file.get_tensor(name)


def shards_of(index: Path) -> list[Path]:
    """The files that an index names."""
    return [index.parent / shard for shard in sorted(set(_places(index).values()))]


def _places(index: Path) -> dict[str, str]:
    """{tensor: file} as an index says."""
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not (isinstance(places, dict) and all(isinstance(p, str) for p in places.values())):
        raise UserError(f"{index} is no index of safetensors: it has no table weight_map of names")
    if strays := [place for place in places.values() if Path(place).name != place]:
        raise UserError(f"{index} names shard {strays[0]!r}; allowed: files beside it")
    return places


def write(folder: Path, tensors: Mapping[str, np.ndarray], shard_bytes: int) -> list[Path]:
    """Writes model.safetensors, or shards of at most `shard_bytes` (or one tensor) and an index.

    The folder has to exist. Returns the files, the index last.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = np.ascontiguousarray(tensor)
        size += tensor.nbytes
    if len(shards) == 1:
        return [_write_one(folder / f"{NAME}{SUFFIX}", shards[0])]
    files = []
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = folder / f"{NAME}-{number:05d}-of-{len(shards):05d}{SUFFIX}"
        files.append(_write_one(file, shard))
        places |= dict.fromkeys(shard, file.name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = folder / f"{NAME}{INDEX_SUFFIX}"
    write_json(index, {"metadata": {"total_size": total}, "weight_map": places})
    return [*files, index]


def _write_one(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    safetensors.numpy.save_file(tensors, path, metadata={"format": "np"})
    path.chmod(mode)  # as the umask says; the library makes files for their owner alone
    return path


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.exists():
        raise UserError(f"cannot read {path}: No such file or directory")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged, cut off or no safetensors file: {error}") from error
