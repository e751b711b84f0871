"""What evaluation suites left in run folders: their parts of summary.json, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pandas as pd

from analysis.errors import InputError
from analysis.estimate import Estimate
from analysis.tables.runs import RunTable
from analysis.tables.suites.parts import SUITES, EstimateJson

Part = TypeVar("Part")


@dataclass(frozen=True)
class Measured(Generic[Part]):
    """One suite's results on one run; ``part`` is as the suite's schema says."""

    run: str
    folder: Path
    part: Part

    def table(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        """Columns of the suite's Parquet table.

        Raises:
            InputError: it is missing, unreadable or lacks a column.
        """
        path = self.folder / name
        try:
            return pd.read_parquet(path, columns=list(columns))
        except Exception as error:  # pyarrow raises many kinds
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: unreadable: {reason}") from None


def measured(runs: RunTable, schema: type[Part]) -> list[Measured[Part]]:
    """The runs of a folder that the suite of this schema has measured, by name; none of a CSV.

    A part that is not as the schema says has been left out when the runs were read: the table's
    warnings name it.
    """
    suite = _suite(schema)
    return [
        Measured(name, folder.path, folder.parts[suite])
        for name in sorted(runs.runs["run"])
        if (folder := runs.folders.get(name)) is not None and suite in folder.parts
    ]


def require_measured(runs: RunTable, schema: type[Part]) -> list[Measured[Part]]:
    """The same.

    Raises:
        InputError: no run has been measured.
    """
    found = measured(runs, schema)
    if not found:
        suite = _suite(schema)
        broken = [line for line in runs.warnings if f": its {suite} is left out" in line]
        raise InputError(
            f"{runs.source}: no run holds {suite}: measure with "
            f"python -m looped_jax.evaluate --workdir={runs.source} --suites={suite}"
            + (f" ({broken[0]})" if broken else "")
        )
    return found


def estimate(value: EstimateJson) -> Estimate:
    """An estimate as suites write it, with its interval if it has one."""
    low, high = value["ci95"]
    interval = None if low is None or high is None else (float(low), float(high))
    error = value["standard_error"]
    number = float("nan") if value["value"] is None else float(value["value"])
    return Estimate(number, None if error is None else float(error), interval)


def _suite(schema: type) -> str:
    return next(name for name, each in SUITES.items() if each is schema)
