"""A table of runs from a folder that holds run folders at any depth.

A run folder's ``summary.json``, written last, says what the run measured, and that it is finished;
``status.json`` how a run without one ended. Whatever is wrong with the files of one run costs that
run, never the table.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import InputError
from analysis.page.characters import printable
from analysis.tables.columns import (
    COLUMNS,
    NUMBERS,
    Dropped,
    RunFolder,
    Source,
    value_problem,
)
from analysis.tables.suites.parts import SUITES
from analysis.tables.suites.schema import first_problem

UNFINISHED = ("running", "diverged", "failed", "interrupted")
#: Numbers that a summary may hold besides.
OPTIONAL_NUMBERS = ("d_model", "seed", "sequence_length", "vocab_size")
#: Two folders that agree in all of these hold one run.
SAME_RUN = (*COLUMNS, "seed", "config_digest", "data_digest", "seconds")


class _UnusableRunError(Exception):
    pass


def read_folder(root: Path, columns: Mapping[str, str]) -> Source:
    """Read all run folders below ``root``, links included; ``columns`` renames (ours: theirs).

    Runs of one name go by their folder's path. A part of a summary that is not as its suite's
    schema says is left out, with a line among the notes.

    Raises:
        InputError: there is no run folder.
    """
    rows: list[dict[str, Any]] = []
    paths: list[str] = []
    folders: list[RunFolder] = []
    dropped: list[Dropped] = []
    notes: list[str] = []
    copies: dict[tuple, str] = {}
    digest = hashlib.sha256()
    for folder in _run_folders(root, dropped):
        name = _name(folder, root)
        try:
            row, parts, raw = _read_run(folder, columns)
            first = copies.setdefault(tuple(str(row.get(key)) for key in SAME_RUN), name)
            if first != name:
                raise _UnusableRunError(f"a copy of {first}")
        except _UnusableRunError as reason:
            dropped.append(Dropped(name, printable(str(reason))))
            continue
        digest.update(name.encode() + b"\0" + hashlib.sha256(raw).digest())
        kept = {}
        for suite in parts:
            problem = first_problem(parts[suite], SUITES[suite])
            if problem is None:
                kept[suite] = parts[suite]
            else:
                notes.append(
                    f"{name}: its {suite} is left out: {printable(problem)}; measure again with "
                    f"python -m looped_jax.evaluate --suites={suite}"
                )
        rows.append(row)
        paths.append(name)
        folders.append(RunFolder(folder, kept))
    if not rows and not dropped:
        raise InputError(f"{root}: holds no run folder (a folder with status.json)")
    frame = pd.DataFrame(rows, columns=None if rows else list(COLUMNS))
    by_path = pd.Series(paths, frame.index, object)
    names = frame["run"].where(~frame["run"].duplicated(keep=False), by_path)
    frame["run"] = by_path if names.duplicated().any() else names
    places = by_path + "/summary.json"
    by_name = dict(zip(frame["run"], folders, strict=True))
    return Source(frame, places, digest.hexdigest(), dropped, sorted(notes), by_name)


def _name(folder: Path, root: Path) -> str:
    return printable(str(folder.relative_to(root)) if folder != root else folder.absolute().name)


def _run_folders(root: Path, dropped: list[Dropped]) -> Iterator[Path]:
    """Folders with a status or a summary; what lies inside them is not searched.

    First those that lie below the root themselves, by name, then those behind links. What cannot be
    searched is added to ``dropped``.
    """

    def leave_out(path: Path | str, reason: str) -> None:
        dropped.append(Dropped(_name(Path(path), root), printable(reason)))

    unreadable = lambda error: leave_out(error.filename, f"cannot be read: {error.strerror}")
    seen: set[Path] = set()
    pending = [root]
    for start in pending:  # grows while it is walked
        target = start.resolve()
        if start != root and (target in seen or target in root.resolve().parents):
            leave_out(
                start, f"a link to {printable(str(target))}, which is read already or holds RUNS"
            )
            continue
        for parent, folders, files in os.walk(start, onerror=unreadable):
            here = Path(parent)
            if here.resolve() in seen:
                folders.clear()
                continue
            seen.add(here.resolve())
            if "status.json" in files or "summary.json" in files:
                folders.clear()
                yield here
                continue
            folders.sort()
            pending += [here / name for name in folders if (here / name).is_symlink()]
            for link in (here / name for name in sorted(files)):
                if link.is_symlink() and not link.exists():
                    leave_out(link, "a link to nothing")


def _read_run(
    folder: Path, columns: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The row of a finished run, the parts of its summary, and the summary's bytes."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise _UnusableRunError("the name of its folder is not UTF-8") from None
    if not (folder / "summary.json").exists():
        raise _UnusableRunError(_why_unfinished(folder))
    summary, raw = _read_object(folder / "summary.json")
    for name, theirs in columns.items():
        if name in summary and theirs in summary:
            raise _UnusableRunError(f"summary.json has {name!r} already, beside {theirs!r}")
    ours = {theirs: name for name, theirs in columns.items()}
    summary = {ours.get(key, key): value for key, value in summary.items()}
    for column in COLUMNS:
        if column not in summary:
            raise _UnusableRunError(f"broken: summary.json lacks {column!r}")
    if not isinstance(summary["run"], str | int) or summary["run"] == "":
        raise _UnusableRunError(f"broken: summary.json has run = {summary['run']!r:.60}, no name")
    parts = {suite: summary.pop(suite) for suite in SUITES if summary.get(suite) is not None}
    flat = {key: value for key, value in summary.items() if not isinstance(value, dict | list)}
    for column in OPTIONAL_NUMBERS:
        if flat.get(column) is not None and not math.isfinite(_number(flat, column)):
            raise _UnusableRunError(f"broken: summary.json has {column} = {flat[column]}")
    row = flat | {column: _number(summary, column) for column in NUMBERS}
    for column in NUMBERS:
        problem = value_problem(column, row[column])
        if problem:
            raise _UnusableRunError(f"broken: summary.json has {column} = {problem}")
    if row["n_once"] + row["n_rec"] == 0:
        raise _UnusableRunError("broken: summary.json has n_once and n_rec = 0")
    return row | {"run": printable(str(row["run"]))}, parts, raw


def _why_unfinished(folder: Path) -> str:
    """What the status of a run without a result says."""
    status, _ = _read_object(folder / "status.json")
    state = str(status.get("state")).lower()
    if state == "finished":
        return "broken: status.json says finished, and there is no summary.json"
    if state not in UNFINISHED:
        return f"broken: status.json has state {status.get('state')!r}"
    at = f" at step {status['step']}" if status.get("step") is not None else ""
    why = f": {status['reason']}" if status.get("reason") else ""
    last_written = status.get("updated") if state == "running" else None
    when = f" (last written {last_written})" if last_written else ""
    return f"{state}{at}{when}{why}"


def _number(summary: Mapping[str, Any], column: str) -> float:
    value = summary[column]
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        raise _UnusableRunError(f"broken: summary.json has {column} beyond 1e308") from None
    raise _UnusableRunError(f"broken: summary.json has {column} = {value!r:.60}, not a number")


def _read_object(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        if path.exists() and not path.is_file():  # reading a pipe would never end
            raise _UnusableRunError(f"broken: {path.name} is no file")
        raw = path.read_bytes()
        value = json.loads(raw)
        if b"\\u" in raw:  # a lone surrogate is no text
            json.dumps(value, ensure_ascii=False).encode()
    except FileNotFoundError:
        raise _UnusableRunError(f"broken: no {path.name}") from None
    except RecursionError:
        raise _UnusableRunError(f"broken: {path.name} is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise _UnusableRunError(f"broken: {path.name} is unreadable ({error})") from None
    if not isinstance(value, dict):
        raise _UnusableRunError(f"broken: {path.name} is not a JSON object")
    return value, raw
