"""Files that other programs read: written aside, flushed to disk, then renamed.

A reader sees the old content or the new, never a part, whatever moment the writer dies at.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from looped_jax.errors import UserError

# A file with this in its name is unfinished; its writer was killed or is still at work.
UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file that takes the place of `path` when the block ends without an error.

    An error in the block, or a kill, leaves what stood at `path` untouched.
    """
    path = Path(path)
    aside = path.with_name(f"{path.name}{UNFINISHED}{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replaces `path` by a file with this content, atomically."""
    with replacing(path) as file:
        file.write(content)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Replaces `path` by `value` as JSON, atomically.

    NumPy scalars become numbers and paths become strings. NaN and infinity are refused
    (ValueError), since strict readers refuse them: write None where a number is missing.
    """
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False, default=_to_json)
    write_bytes(path, (text + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file. Raises UserError if it is missing, unreadable or not JSON."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a JSON file: {error}") from error


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """Hexadecimal SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_to_json
    )
    return hashlib.sha256(text.encode()).hexdigest()


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Makes the folder if need be and returns it; UserError if nothing can be written there."""
    folder = Path(path)
    probe = folder / f"probe{UNFINISHED}{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write into folder {folder}: {error.strerror}") from error
    return folder


def _sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form: {value!r}")
