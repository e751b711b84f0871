"""One tidy table of runs, from a CSV or from a folder that holds run folders at any depth.

Between training and analysis stand only files: a run folder's ``summary.json``, written last, says
what it measured, and that it is finished; ``status.json`` how a run without one ended. Every run
that is left out is listed with its reason; a value that cannot be used stops the analysis with its
file, row and column. Runs of one name are told apart by their folders.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, InputError
from analysis.laws.counting import Injection, book_injection
from analysis.tables.diagnostics import data_warnings

#: The columns every table has; others are kept.
NUMBERS = (
    "budget",
    "r",
    "n_once",
    "n_rec",
    "n_inject",
    "tokens",
    "flops_per_token",
    "train_flops",
    "loss",
)
COLUMNS = ("run", *NUMBERS)
MAY_BE_ZERO = ("n_once", "n_rec", "n_inject")

#: ln(268,000), a uniform guess over the largest vocabularies in use: no loss in nats is higher.
MAX_LOSS_NATS = 12.5

Group = Literal["min"]


@dataclass(frozen=True)
class Dropped:
    """A run that is not in the table, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class RunTable:
    """The usable runs of one source, as they were measured.

    ``runs`` keeps the injection matrix in its own column; :attr:`booked` is the same table as the
    law sees it. Counts are float64 (integer counts overflow in 6·N·D), losses are in nats.
    """

    runs: pd.DataFrame
    injection: Injection
    source: Path
    sha256: str
    dropped: list[Dropped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def booked(self) -> pd.DataFrame:
        """``runs`` with the injection matrix booked as ``injection`` says."""
        return book_injection(self.runs, self.injection)

    def book(self, injection: Injection) -> RunTable:
        """The same runs under another booking of the injection matrix."""
        return replace(self, injection=injection)

    def select(self, keep: pd.Series | np.ndarray) -> RunTable:
        """The runs where ``keep`` is true; what was dropped and warned of stays listed."""
        return replace(self, runs=self.runs[np.asarray(keep, bool)].reset_index(drop=True))

    def __len__(self) -> int:
        return len(self.runs)


def load_runs(
    path: Path | str,
    *,
    injection: Injection = "once",
    where: str | None = None,
    group: Group | None = None,
) -> RunTable:
    """Read, filter and check a table of runs.

    Args:
        path: a CSV with the columns ``run, budget, r, n_once, n_rec, n_inject, tokens,
            flops_per_token, train_flops, loss`` in any order, or a folder of run folders.
        injection: how the law counts the injection matrix.
        where: a pandas query over the columns, such as ``"r in (1, 4) and budget < 3e18"``.
        group: ``"min"`` keeps the lowest loss among runs of the same (r, N, D).

    Raises:
        InputError: the file, row and column of what cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        frame, places, dropped, sha256 = _read_folder(path)
    elif path.is_file():
        frame, places, dropped, sha256 = _read_csv(path)
    else:
        raise InputError(f"{path}: no such file or folder")
    if where is not None and not frame.empty:
        frame = _filter(frame, where, path)
    if frame.empty:
        raise InputError(f"{path}: no usable run{_first_reasons(dropped)}")
    _check_values(frame, places, path)
    _check_unique(frame, places, path)
    if group is not None:
        frame, grouped = _keep_minimum(frame)
        dropped = dropped + grouped
    frame = _tidy(frame)
    book_injection(frame, injection)  # refuses an unknown choice here, before any work
    return RunTable(frame, injection, path, sha256, dropped, data_warnings(frame))


# --- CSV ---------------------------------------------------------------------------------------


def _read_csv(path: Path) -> tuple[pd.DataFrame, pd.Series, list[Dropped], str]:
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None
    reader = csv.reader(text.splitlines())
    try:
        header = [name.strip() for name in next(reader)]
    except StopIteration:
        raise InputError(f"{path}: empty file") from None
    _check_header(header, path)
    rows: list[list[str]] = []
    places: list[str] = []
    for cells in reader:
        if not cells:
            continue
        place = f"row {len(rows) + 1} (line {reader.line_num})"
        if len(cells) != len(header):
            raise InputError(f"{path}: {place} has {len(cells)} fields, the header {len(header)}")
        rows.append(cells)
        places.append(place)
    frame = pd.DataFrame(rows, columns=header)
    place = pd.Series(places, index=frame.index, dtype=object)
    frame, dropped = _drop_unfinished_rows(frame)
    for column in NUMBERS:
        frame[column] = _numbers(frame[column], column, place, path)
    for column in frame.columns.difference(COLUMNS):
        frame[column] = _numbers_where_all_are(frame[column])
    return frame, place, dropped, hashlib.sha256(raw).hexdigest()


def _check_header(header: list[str], path: Path) -> None:
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise InputError(f"{path}: column {doubled[0]!r} appears twice in the header")
    for column in COLUMNS:
        if column not in header:
            lowered = {name.lower(): name for name in header if name not in COLUMNS}
            near = difflib.get_close_matches(column, lowered, n=1, cutoff=0.5)
            hint = f" (there is {lowered[near[0]]!r}: rename it?)" if near else ""
            raise InputError(
                f"{path}: column {column!r} is missing{hint}; needed are {', '.join(COLUMNS)}"
            )


def _drop_unfinished_rows(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Dropped]]:
    if "state" not in frame:
        return frame, []
    unfinished = frame["state"].str.strip() != "finished"
    dropped = [
        Dropped(run, f"state is {state or 'empty'}")
        for run, state in frame.loc[unfinished, ["run", "state"]].itertuples(index=False)
    ]
    return frame[~unfinished].copy(), dropped


def _numbers(cells: pd.Series, column: str, places: pd.Series, path: Path) -> pd.Series:
    values = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    for i in values.index[values.isna()]:
        cell = cells[i].strip()
        if cell.lower() not in ("nan", "+nan", "-nan"):  # the value checks speak of those
            what = f"{cell!r} is not a number" if cell else "is empty"
            raise InputError(f"{path}: {places[i]}, column {column!r}: {what}")
    return values


def _numbers_where_all_are(cells: pd.Series) -> pd.Series:
    values = pd.to_numeric(cells, errors="coerce")
    return cells if values.isna().any() else values


# --- run folders -------------------------------------------------------------------------------


def _read_folder(root: Path) -> tuple[pd.DataFrame, pd.Series, list[Dropped], str]:
    rows: list[dict[str, Any]] = []
    names: list[str] = []
    places: list[str] = []
    dropped: list[Dropped] = []
    digest = hashlib.sha256()
    n_folders = 0
    for folder in _run_folders(root):
        n_folders += 1
        name = str(folder.relative_to(root)) if folder != root else folder.name
        try:
            row, raw = _read_run(folder)
        except _UnusableRunError as reason:
            dropped.append(Dropped(name, str(reason)))
            continue
        digest.update(name.encode() + b"\0" + hashlib.sha256(raw).digest())
        rows.append(row)
        names.append(name)
        places.append(f"{name}/summary.json")
    if n_folders == 0:
        raise InputError(f"{root}: holds no run folder (a folder with status.json)")
    frame = pd.DataFrame(rows, columns=None if rows else list(COLUMNS))
    frame["folder"] = names
    twice = frame["run"].duplicated(keep=False)
    frame.loc[twice, "run"] = frame.loc[twice, "folder"]
    return frame, pd.Series(places, index=frame.index, dtype=object), dropped, digest.hexdigest()


def _run_folders(root: Path) -> Iterator[Path]:
    """Folders with a status or a summary, by name; what lies inside them is not searched."""
    for parent, folders, files in os.walk(root):
        folders.sort()
        if "status.json" in files or "summary.json" in files:
            folders.clear()
            yield Path(parent)


class _UnusableRunError(Exception):
    pass


def _why_unfinished(folder: Path) -> str:
    """What the status of a run without a result says."""
    status, _ = _read_object(folder / "status.json")
    state = status.get("state")
    if state == "finished":
        return "broken: status.json says finished, and there is no summary.json"
    if state not in ("running", "diverged", "failed", "interrupted"):
        return f"broken: status.json has state {state!r}"
    at = f" at step {status['step']}" if status.get("step") is not None else ""
    why = f": {status['reason']}" if status.get("reason") else ""
    last_written = status.get("updated") if state == "running" else None
    when = f" (last written {last_written})" if last_written else ""
    return f"{state}{at}{when}{why}"


def _read_run(folder: Path) -> tuple[dict[str, Any], bytes]:
    if not (folder / "summary.json").exists():
        raise _UnusableRunError(_why_unfinished(folder))
    summary, raw = _read_object(folder / "summary.json")
    for column in COLUMNS:
        if column not in summary:
            raise _UnusableRunError(f"broken: summary.json lacks {column!r}")
    for column in NUMBERS:
        value = summary[column]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _UnusableRunError(f"broken: summary.json has {column} = {value!r}, not a number")
        problem = _value_problem(column, float(value))
        if problem:
            raise _UnusableRunError(f"broken: summary.json has {column} = {problem}")
    row = {key: value for key, value in summary.items() if not isinstance(value, dict | list)}
    row.update({column: float(row[column]) for column in NUMBERS})
    return row | {"run": str(row["run"])}, raw


def _read_object(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        raw = path.read_bytes()
        value = json.loads(raw)
    except FileNotFoundError:
        raise _UnusableRunError(f"broken: no {path.name}") from None
    except RecursionError:
        raise _UnusableRunError(f"broken: {path.name} is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise _UnusableRunError(f"broken: {path.name} is unreadable ({error})") from None
    if not isinstance(value, dict):
        raise _UnusableRunError(f"broken: {path.name} is not a JSON object")
    return value, raw


# --- filters and checks, the same for both sources ---------------------------------------------


def _filter(frame: pd.DataFrame, where: str, path: Path) -> pd.DataFrame:
    try:
        kept = frame.query(where, engine="python")
    except Exception as error:  # pandas raises whatever the expression does
        raise AnalysisError(
            f"--where {where!r} is not a condition on the columns: {error}"
        ) from None
    if not isinstance(kept, pd.DataFrame):
        raise AnalysisError(f"--where {where!r} is not a condition on the columns")
    if kept.empty:
        raise InputError(f"{path}: --where {where!r} leaves none of {len(frame)} runs")
    return kept


def _value_problem(column: str, value: float) -> str | None:
    if not math.isfinite(value):
        return f"{value} is not finite"
    if value < 0 or (value == 0 and column not in MAY_BE_ZERO):
        hint = " (an integer that overflowed?)" if value < 0 and column != "loss" else ""
        return f"{value:g} is not positive{hint}"
    if column == "r" and value < 1:
        return f"{value:g} is less than one recurrence"
    if column == "loss" and value > MAX_LOSS_NATS:
        return f"{value:g} is no loss in nats: a perplexity? (ln of it is {math.log(value):.3f})"
    return None


def _check_values(frame: pd.DataFrame, places: pd.Series, path: Path) -> None:
    for column in NUMBERS:
        values = frame[column].to_numpy(np.float64)
        low = 1.0 if column == "r" else 0.0 if column in MAY_BE_ZERO else np.nextafter(0.0, 1.0)
        high = MAX_LOSS_NATS if column == "loss" else np.finfo(np.float64).max
        bad = np.flatnonzero(~((values >= low) & (values <= high)))
        if len(bad):
            problem = _value_problem(column, float(values[bad[0]]))
            raise InputError(f"{path}: {places[frame.index[bad[0]]]}, column {column!r}: {problem}")
    empty = np.flatnonzero((frame["n_once"] + frame["n_rec"]).to_numpy() == 0)
    if len(empty):
        place = places[frame.index[empty[0]]]
        raise InputError(f"{path}: {place}, columns 'n_once' and 'n_rec': both are 0")


def _check_unique(frame: pd.DataFrame, places: pd.Series, path: Path) -> None:
    doubled = frame["run"].duplicated(keep=False)
    if doubled.any():
        first, second = frame.index[doubled & (frame["run"] == frame["run"][doubled].iloc[0])][:2]
        raise InputError(
            f"{path}: {places[second]}, column 'run': {frame['run'][second]!r} "
            f"stands in {places[first]} already"
        )


def _keep_minimum(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Dropped]]:
    cell = ["r", "n_once", "n_rec", "n_inject", "tokens"]
    best = frame.groupby(cell, sort=False)["loss"].idxmin()
    kept = frame.loc[sorted(best)]
    winner = frame[cell].merge(frame.loc[best, [*cell, "run"]], on=cell, how="left")["run"]
    winner.index = frame.index
    dropped = [
        Dropped(str(frame["run"][i]), f"same (r, N, D) as {winner[i]}, which has the lower loss")
        for i in frame.index.difference(kept.index)
    ]
    return kept, dropped


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Named columns first, r as whole numbers where it is, rows numbered from 0."""
    others = [column for column in frame.columns if column not in COLUMNS]
    frame = frame[[*COLUMNS, *others]].reset_index(drop=True)
    if (frame["r"] % 1 == 0).all():
        frame["r"] = frame["r"].astype(np.int64)
    return frame


def _first_reasons(dropped: list[Dropped]) -> str:
    if not dropped:
        return ""
    shown = "; ".join(f"{run.run}: {run.reason}" for run in dropped[:3])
    return f" ({len(dropped)} dropped: {shown}{'; …' if len(dropped) > 3 else ''})"
