"""What evaluation suites left in run folders: their parts of summary.json, and their tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import InputError
from analysis.tables.estimate import Estimate
from analysis.tables.runs import RunTable
from analysis.tables.suites.parts import ESTIMATE

#: What the intervals of a suite were resampled over, in words.
TEXT_UNITS = {
    "document": "documents of the held-out text",
    "window": "windows of the held-out text, since it has few documents",
}


@dataclass(frozen=True)
class Measured:
    """One suite's results on one run.

    ``part`` is what the suite's schema declares, its numbers with intervals as ``Estimate``; a
    value deep in it is ``run["kl.median"]``.
    """

    run: str
    folder: Path
    part: dict[str, Any]

    def __getitem__(self, path: str) -> Any:
        return reduce(lambda value, key: value[key], path.split("."), self.part)

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


def measured(runs: RunTable, suite: str) -> list[Measured]:
    """The runs of a folder that a suite has measured, by name; none of a CSV.

    A part that is not as the schema says has been left out when the runs were read: the table's
    warnings name it.
    """
    return [
        Measured(name, folder.path, _with_estimates(folder.parts[suite]))
        for name in sorted(runs.runs["run"])
        if (folder := runs.folders.get(name)) is not None and suite in folder.parts
    ]


def require_measured(runs: RunTable, suite: str) -> None:
    """Raise InputError if the suite has measured no run."""
    if measured(runs, suite):
        return
    broken = [line for line in runs.warnings if f": its {suite} is left out" in line]
    raise InputError(
        f"{runs.source}: no run holds {suite}: measure with "
        f"python -m looped_jax.evaluate --workdir={runs.source} --suites={suite}"
        + (f" ({broken[0]})" if broken else "")
    )


def _with_estimates(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_estimates(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == ESTIMATE.keys():
        ends = None if None in value["ci95"] else tuple(value["ci95"])
        number = float("nan") if value["value"] is None else float(value["value"])
        return Estimate(number, value["standard_error"], ends)
    return {key: _with_estimates(each) for key, each in value.items()}
