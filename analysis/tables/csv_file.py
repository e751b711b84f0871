"""A table of runs from a CSV, as people export it.

The standard library's reader does the splitting: it keeps quoted line ends, knows the line that a
row ends on, and hands on short rows, which pandas would fill up without a word.
"""

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.page.characters import printable
from analysis.tables.columns import (
    COLUMNS,
    NUMBERS,
    Dropped,
    Source,
    check_header,
    complete,
    renamed,
)

SEPARATORS = ",;\t"
BYTE_ORDER_MARK = "\ufeff"


def read_csv(path: Path, columns: Mapping[str, str]) -> Source:
    """Read a CSV whose columns may have other names (ours: theirs).

    Separated by commas, semicolons or tabs; lines that begin with # and empty ones do not count;
    rows whose ``state`` (in any case) is not "finished" are dropped.

    Raises:
        InputError: the file, row and column of what cannot be used.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    rows = _rows(text, path)
    try:
        _, header = next(rows)
    except StopIteration:
        raise InputError(f"{path}: empty file") from None
    names = renamed([name.strip() for name in header], columns, path)
    check_header(names, path)
    places: list[str] = []
    cells: list[list[str]] = []
    for line, row in rows:
        place = f"row {len(cells) + 1} (line {line})"
        if len(row) != len(names):
            raise InputError(f"{path}: {place} has {len(row)} fields, the header {len(names)}")
        places.append(place)
        cells.append(row)
    frame = pd.DataFrame(cells, columns=names, dtype=object)
    place = pd.Series(places, index=frame.index, dtype=object)
    frame, dropped = _without_unfinished(frame)
    for column in frame.columns:
        if column in NUMBERS:
            frame[column] = _numbers(frame[column], column, place, path)
        elif column not in COLUMNS:
            values = pd.to_numeric(frame[column], errors="coerce")
            frame[column] = frame[column] if values.isna().any() else values
    notes = complete(frame)
    frame["run"] = _names(frame["run"])
    return Source(frame, place, hashlib.sha256(raw).hexdigest(), dropped, notes)


def _rows(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row with the number of its last line, the header first."""
    # newline="" leaves the line ends to the reader: they may stand within quotes.
    lines = io.StringIO(text, newline="")
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    count = lambda separator: len(next(csv.reader([first], delimiter=separator), []))
    lines.seek(0)
    reader = csv.reader(lines, delimiter=max(SEPARATORS, key=count))
    try:
        for row in reader:
            if row and not row[0].startswith("#"):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: no CSV: {error}") from None


def _without_unfinished(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Dropped]]:
    dropped = []
    for column in [name for name in frame if name.lower() == "state"]:
        state = frame[column].str.strip()
        unfinished = state.str.lower() != "finished"
        names = frame["run"] if "run" in frame else frame.index.map(lambda i: f"row {i + 1}")
        dropped += [
            Dropped(printable(str(name)), f"state is {printable(value) or 'empty'}")
            for name, value in zip(names[unfinished], state[unfinished], strict=True)
        ]
        frame = frame[~unfinished].copy()
    return frame, dropped


def _numbers(cells: pd.Series, column: str, places: pd.Series, path: Path) -> pd.Series:
    values = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    for i in values.index[values.isna()]:
        cell = cells[i].strip()
        if cell.lower() not in ("nan", "+nan", "-nan"):  # the value checks speak of those
            what = f"{cell!r} is not a number" if cell else "is empty"
            comma = " (a decimal comma?)" if cell.replace(",", "").isdigit() else ""
            raise InputError(f"{path}: {places[i]}, column {column!r}: {what}{comma}")
    return values


def _names(names: pd.Series) -> pd.Series:
    """Printable, and with the number of the row where several rows have one name."""
    names = names.map(lambda name: printable(name.strip()))
    rows = pd.Series([f"{name} (row {i + 1})" for i, name in names.items()], names.index, object)
    return names.where(~names.duplicated(keep=False), rows)
