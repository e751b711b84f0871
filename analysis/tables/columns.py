"""The columns of a table of runs: which there are, what they may hold, what follows from others."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import InputError

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
#: Columns that are read where a table has them.
OTHERS = ("d_model", "seed", "state", "data_digest", "sequence_length", "vocab_size")
#: What a CSV has to hold, and the names of papers for a table without recurrences.
NEEDED = ("r", "n_once", "n_rec", "tokens", "loss")
SHORT = {"N": "n_rec", "D": "tokens", "C": "train_flops"}

MAY_BE_ZERO = ("n_once", "n_rec", "n_inject")
#: ln(268,000), a uniform guess over the largest vocabularies in use: no loss in nats is higher.
MAX_LOSS_NATS = 12.5
#: No count of parameters, tokens or FLOPs is higher; 6·N·D of two such numbers is finite.
MAX_COUNT = 1e40


@dataclass(frozen=True)
class Dropped:
    """A run that is not in the table, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class RunFolder:
    """Where a run lies, and by suite what evaluation left in its summary, as its schema says."""

    path: Path
    parts: Mapping[str, Any]


@dataclass
class Source:
    """What a CSV or a folder holds, before anything is selected or checked.

    Attributes:
        places: where each row stands, in words.  notes: what was taken for granted.
        folders: of the runs by name; none of a CSV.
    """

    frame: pd.DataFrame
    places: pd.Series
    sha256: str
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folders: dict[str, RunFolder] = field(default_factory=dict)


def value_problem(column: str, value: float) -> str | None:
    """What is wrong with a number of one of NUMBERS, or None."""
    if not math.isfinite(value):
        return f"{value} is not finite"
    if value < 0 or (value == 0 and column not in MAY_BE_ZERO):
        hint = " (an integer that overflowed?)" if value < 0 and column != "loss" else ""
        return f"{value:g} is not positive{hint}"
    if column == "r" and value < 1:
        return f"{value:g} is less than one recurrence"
    if column == "loss" and value > MAX_LOSS_NATS:
        return f"{value:g} is no loss in nats: a perplexity? (ln of it is {math.log(value):.3f})"
    return f"{value:g} is no count" if value > MAX_COUNT else None


def renamed(names: Sequence[str], columns: Mapping[str, str], path: Path) -> list[str]:
    """The header with the names that tables use: by ``columns`` (ours: theirs), then by SHORT.

    Raises:
        InputError: a column that is not there, or one that would be there twice.
    """
    for ours, theirs in columns.items():
        if theirs not in names:
            raise InputError(f"{path}: no column {theirs!r}; there are {', '.join(names)}")
        if ours in names:
            raise InputError(f"{path}: column {ours!r} is there already, beside {theirs!r}")
    back = {theirs: ours for ours, theirs in columns.items()}
    new = [back.get(name, name) for name in names]
    return [SHORT[name] if SHORT.get(name, name) not in new else name for name in new]


def check_header(names: Sequence[str], path: Path) -> None:
    """Name everything that a table of runs lacks, or holds twice.

    Raises:
        InputError: it does.
    """
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(f"{path}: column {doubled[0]!r} appears twice in the header")
    plain = "n_once" not in names and "r" not in names  # N, D and loss: r = 1 throughout
    simple = lambda name: "".join(filter(str.isalnum, name.lower()))
    others = {simple(name): name for name in names if name not in COLUMNS}
    needed = [c for c in NEEDED if not (plain and c in ("r", "n_once"))]
    missing = [c for c in COLUMNS if c not in names and (c in needed or simple(c) in others)]
    if not missing:
        return
    near = {
        column: others[close[0]]
        for column in missing
        if (close := difflib.get_close_matches(simple(column), others, n=1, cutoff=0.85))
    }
    hint = ",".join(f"{ours}={theirs}" for ours, theirs in near.items())
    raise InputError(
        f"{path}: no column {', '.join(missing)}; needed are {', '.join(NEEDED)}, or N, D and loss "
        "for a law without recurrences; other names are told by --columns "
        + (f"(here: --columns={hint})" if hint else "(--columns=tokens=seen)")
    )


def complete(frame: pd.DataFrame) -> list[str]:
    """Fill in, in place, the columns that follow from others; what was taken, in words."""
    notes: dict[str, Any] = {}

    def fill(column: str, value: Any, words: str) -> None:
        if column not in frame:
            frame[column] = value
            notes[column] = words

    fill("r", 1.0, "1")
    fill("n_once", 0.0, "0")
    fill("n_inject", 0.0, "0")
    if "train_flops" not in frame and "flops_per_token" in frame:
        fill("train_flops", frame["flops_per_token"] * frame["tokens"], "flops_per_token × tokens")
    if "budget" in frame:
        fill("train_flops", frame["budget"], "budget")
    executed = frame["n_once"] + frame["r"] * (frame["n_rec"] + frame["n_inject"])
    fill("train_flops", 6.0 * executed * frame["tokens"], "6·(n_once + r·n_rec)·tokens")
    fill("budget", frame["train_flops"], "train_flops")
    fill("flops_per_token", frame["train_flops"] / frame["tokens"], "train_flops / tokens")
    fill("run", [f"row {i + 1}" for i in frame.index], "the number of the row")
    shown = ", ".join(f"{column} = {words}" for column, words in notes.items())
    return [f"not in the file, and taken: {shown}"] if shown else []


def check_values(frame: pd.DataFrame, places: pd.Series, path: Path) -> None:
    """Raise InputError at the first number that cannot be used, with its place."""
    for column in NUMBERS:
        values = frame[column].to_numpy(np.float64)
        for i in np.flatnonzero([value_problem(column, value) is not None for value in values]):
            place, problem = places[frame.index[i]], value_problem(column, float(values[i]))
            raise InputError(f"{path}: {place}, column {column!r}: {problem}")
    empty = np.flatnonzero((frame["n_once"] + frame["n_rec"]).to_numpy() == 0)
    if len(empty):
        place = places[frame.index[empty[0]]]
        raise InputError(f"{path}: {place}, columns 'n_once' and 'n_rec': both are 0")
