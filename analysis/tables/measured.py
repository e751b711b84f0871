"""What evaluation suites left in run folders: their part of summary.json, and their tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import InputError
from analysis.estimate import Estimate
from analysis.tables.runs import RunTable


@dataclass(frozen=True)
class Measured:
    """One suite's results on one run."""

    run: str
    folder: Path
    suite: str
    part: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        """A value of the part.

        Raises:
            InputError: it is not there.
        """
        if key not in self.part:
            raise InputError(
                f"{self.folder / 'summary.json'}: {self.suite} lacks {key!r}: measure the run again"
                f" with python -m looped_jax.evaluate --suites={self.suite}"
            )
        return self.part[key]

    def table(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The suite's Parquet table.

        Raises:
            InputError: it is missing, unreadable or lacks a column.
        """
        path = self.folder / str(self["table"])
        try:
            return pd.read_parquet(path, columns=None if columns is None else list(columns))
        except Exception as error:  # pyarrow raises many kinds
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: unreadable: {reason}") from None


def measured(runs: RunTable, suite: str) -> list[Measured]:
    """The runs of a folder that a suite has measured, by name; none for a CSV."""
    if not runs.source.is_dir():
        return []
    found = []
    for run, name in runs.runs[["run", "folder"]].itertuples(index=False):
        folder = runs.source / name if (runs.source / name).is_dir() else runs.source
        summary = json.loads((folder / "summary.json").read_bytes())  # load_runs has read it before
        part = summary.get(suite)
        if part is None:
            continue
        if not isinstance(part, dict):
            raise InputError(f"{folder / 'summary.json'}: {suite} is not a JSON object")
        found.append(Measured(run, folder, suite, part))
    return sorted(found, key=lambda each: (each.run, each.folder))


def require_measured(runs: RunTable, suite: str) -> list[Measured]:
    """The same.

    Raises:
        InputError: no run has been measured.
    """
    found = measured(runs, suite)
    if not found:
        raise InputError(
            f"{runs.source}: no run holds {suite}: measure with "
            f"python -m looped_jax.evaluate --workdir={runs.source} --suites={suite}"
        )
    return found


def estimate(value: dict[str, Any]) -> Estimate:
    """An estimate as suites write it, with its interval if it has one."""
    low, high = value["ci95"]
    interval = None if low is None or high is None else (float(low), float(high))
    error = value["standard_error"]
    number = float("nan") if value["value"] is None else float(value["value"])
    return Estimate(number, None if error is None else float(error), interval)
