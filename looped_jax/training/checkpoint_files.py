"""Checkpoint folders on disk: which are complete, which are damaged, which may go.

    checkpoints/
      1000/              a complete checkpoint of step 1000: orbax items, and digests.json
      1200.unfinished*   a save at work, or one that was killed
      1100.broken        did not match its digests at a resume and was set aside
      900.removed        on its way out

A checkpoint is written under the name `STEP.unfinished-N`, gets the digests of its files, and is
renamed last. So a killed save never looks like a checkpoint, and a folder with a number for a name
that does not match its digests was damaged afterwards. Every process reads its part of the files,
for the digests and to compare them.

The folder has to be on a POSIX file system that all processes see. Only process 0 changes names.
"""

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from looped_jax.errors import UserError
from looped_jax.files import read_json, sha256_of_file, write_json

DIGESTS = "digests.json"
_NAME = re.compile(r"(\d+)(?:\.(unfinished|broken|removed).*)?")
_HASHING_THREADS = 4
# What the processes but the first found of their parts of a save.
_OF_PARTS = "digests-of-part-"
_PART = _OF_PARTS + "{}.json"
_POLL_SECONDS = 0.05

_log = logging.getLogger(__name__)


def unfinished_path(folder: Path, step: int, attempt: int) -> Path:
    """Where the checkpoint of `step` is written until it is complete."""
    return folder / f"{step}.unfinished-{attempt}"


def complete_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, ascending. Their content is not looked at (see `damage`)."""
    return sorted(step for step, kind, _ in _entries(folder) if kind is None)


def broken_steps(folder: Path) -> list[int]:
    """Steps whose checkpoint was set aside as damaged, ascending."""
    return sorted(step for step, kind, _ in _entries(folder) if kind == "broken")


def complete(path: Path, step: int, parts: int = 1) -> None:
    """Flushes the unfinished checkpoint at `path` to disk, adds its digests and renames it.

    Of several processes the others call `describe_part`, for which this waits.

    Raises:
      OSError: the disk is full or cannot be read; no checkpoint of `step` then exists.
    """
    described = _described(path, 0, parts)
    for part in range(1, parts):
        of_part = path / _PART.format(part)
        while not of_part.exists():  # a process that fails ends this one, too
            time.sleep(_POLL_SECONDS)
        described |= read_json(of_part)
        of_part.unlink()
    write_json(path / DIGESTS, {"step": step, "files": dict(sorted(described.items()))})
    path.rename(path.with_name(str(step)))


def describe_part(path: Path, part: int, parts: int) -> None:
    """Flushes and reads part 1, 2, … of the files of an unfinished checkpoint, for `complete`.

    Raises:
      OSError: the disk is full or cannot be read.
    """
    write_json(path / _PART.format(part), _described(path, part, parts))


def _described(path: Path, part: int, parts: int) -> dict[str, dict[str, Any]]:
    files = (file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    names = sorted(name for name in files if not name.startswith(_OF_PARTS))[part::parts]
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        described = list(pool.map(lambda name: _flush_and_describe(path / name), names))
    return dict(zip(names, described, strict=True))


def damage(
    folder: Path,
    step: int,
    items: Collection[str] | None = None,
    *,
    part: int = 0,
    parts: int = 1,
) -> str | None:
    """Why the checkpoint of `step` cannot be trusted, or None if it is as it was written.

    Args:
      folder: the folder of checkpoints.
      step: which one.
      items: names of the orbax items whose files are checked (they are read in full); None for all.
      part: only this one of so many parts of these files.
    """
    path = folder / str(step)
    if not any(path.iterdir()):
        return "its folder is empty"
    if not (path / DIGESTS).exists():
        return f"{DIGESTS} is missing"
    try:
        content = read_json(path / DIGESTS)
        files: dict[str, dict[str, Any]] = content["files"]
        if content["step"] != step:
            return f"it is the checkpoint of step {content['step']}"
        checked = [
            name
            for name in files
            if items is None or "/" not in name or name.partition("/")[0] in items
        ][part::parts]
        with ThreadPoolExecutor(_HASHING_THREADS) as pool:
            reasons = pool.map(lambda name: _file_damage(path / name, name, files[name]), checked)
            return next((reason for reason in reasons if reason), None)
    except (UserError, KeyError, TypeError, AttributeError):
        return f"{DIGESTS} is damaged"


def set_aside(folder: Path, step: int) -> None:
    """Renames a damaged checkpoint, so that it is never restored and its step can be saved anew."""
    aside = folder / f"{step}.broken"
    shutil.rmtree(aside, ignore_errors=True)  # of an earlier fallback
    (folder / str(step)).rename(aside)


def discard_unfinished(folder: Path) -> None:
    """Removes what killed saves and killed removals left behind."""
    for step, kind, path in _entries(folder):
        if kind in ("unfinished", "removed"):
            if kind == "unfinished":
                _log.warning("discarding an unfinished save of step %d: %s", step, path)
            shutil.rmtree(path)


def remove_old(folder: Path, keep: int, milestones: Collection[int] = ()) -> None:
    """Removes what is older than the newest `keep` complete checkpoints, but no milestones."""
    steps = [step for step in complete_steps(folder) if step not in milestones]
    if len(steps) < keep:
        return
    for step, kind, path in _entries(folder):
        if step < steps[-keep] and not (kind is None and step in milestones):
            if kind is None:  # renamed first: half a removal must not look like a checkpoint
                path = path.rename(folder / f"{step}.removed")
            shutil.rmtree(path)


def _entries(folder: Path) -> list[tuple[int, str | None, Path]]:
    """(step, kind, path) of all subfolders; the kind of a complete checkpoint is None."""
    if not folder.is_dir():
        return []
    matched = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir()]
    return [(int(match[1]), match[2], path) for match, path in matched if match]


def _flush_and_describe(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        return {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _file_damage(path: Path, name: str, expected: dict[str, Any]) -> str | None:
    try:
        size = path.stat().st_size
        if size != expected["bytes"]:
            return f"{name} has {size} bytes instead of {expected['bytes']}"
        if sha256_of_file(path) != expected["sha256"]:
            return f"{name} does not match its digest"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None
