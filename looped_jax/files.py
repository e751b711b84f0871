"""Files that other programs read: written aside, flushed to disk, then renamed.

A reader sees the old content or the new, never a part, whatever moment the writer dies at. Nobody
can know the name aside before it is made, and no link that lies there is followed. What a killed
writer left is removed by the next one.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from looped_jax.errors import UserError

# What writing fails with when the disk, or the user's share of it, is full.
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# A file with this in its name is unfinished; its writer was killed or is still at work.
UNFINISHED = ".unfinished-"


# A leftover younger than this may be one whose writer has not locked it yet.
_YOUNG_SECONDS = 60.0


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file that takes the place of `path` when the block ends without an error.

    An error in the block, or a kill, leaves what stood at `path` untouched. A link at `path` is
    replaced, not followed.
    """
    path = Path(path)
    _sweep_of(path)
    aside = _unfinished(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(aside, flags, 0o666), "wb") as file:
            _hold(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes a folder that becomes `path` when the block ends without an error.

    `path` may be an empty folder already, or nothing. An error or a kill leaves nothing there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_of(path)
    aside = _unfinished(path)
    aside.mkdir()
    descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _hold(descriptor)
        yield aside
        os.replace(aside, path)
    finally:
        os.close(descriptor)
        shutil.rmtree(aside, ignore_errors=True)
    _sync_folder(path.parent)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Removes the files in a folder that killed writers left unfinished.

    For who holds the folder against other writers; files that one of them holds stay.
    """
    for leftover in Path(folder).glob(f"*{UNFINISHED}*"):
        _remove_if_abandoned(leftover, youngest=0.0)


def subfolder(folder: Path, name: str) -> Path:
    """Makes `folder/name` if need be and returns it; UserError if a link leads elsewhere."""
    path = folder / name
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link; allowed: a folder in {folder} itself")
    return writable_folder(path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}{UNFINISHED}{secrets.token_hex(8)}")


def _hold(descriptor: int) -> None:
    """Marks a file or folder as one whose writer lives, where the file system has locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep_of(path: Path) -> None:
    """Removes what killed writers of `path` left."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}{UNFINISHED}*"):
        _remove_if_abandoned(leftover, youngest=_YOUNG_SECONDS)


def _remove_if_abandoned(leftover: Path, youngest: float) -> None:
    try:
        found = leftover.lstat()
        if time.time() - found.st_mtime < youngest:
            return
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            leftover.unlink()  # a link, say: nobody here makes one
            return
        descriptor = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone already, or not ours
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    except OSError:  # its writer is at work, there are no locks here, or it is not ours
        return
    finally:
        os.close(descriptor)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replaces `path` by a file with this content, atomically."""
    with replacing(path) as file:
        file.write(content)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Replaces `path` by `value` as JSON, atomically.

    NumPy scalars become numbers and paths become strings. NaN and infinity are refused
    (ValueError), since strict readers refuse them: write None where a number is missing.
    """
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False, default=to_json)
    write_bytes(path, (text + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file. Raises UserError if it is missing, unreadable or not JSON."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except RecursionError as error:
        raise UserError(f"{path} is not a JSON file to read: it is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{path} is not a JSON file: {error}") from error


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """Hexadecimal SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=to_json
    )
    return hashlib.sha256(text.encode()).hexdigest()


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Makes the folder if need be and returns it; UserError if nothing can be written there."""
    folder = Path(path)
    probe = _unfinished(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
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


def to_json(value: Any) -> Any:
    """What `json.dumps` takes as `default`: NumPy scalars as numbers, paths as strings."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form: {value!r}")
