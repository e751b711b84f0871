"""One tidy table of runs, from a CSV or from a folder that holds run folders at any depth.

Between training and analysis stand only files. Every run that is left out is listed with its
reason; a value of a CSV that cannot be used stops the analysis with its file, row and column.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.laws.counting import Injection, book_injection
from analysis.tables.columns import COLUMNS, Dropped, RunFolder, check_values
from analysis.tables.csv_file import read_csv
from analysis.tables.diagnostics import data_warnings
from analysis.tables.folders import read_folder
from analysis.tables.rounding import merge_rounded
from analysis.tables.where import rows_where

Group = Literal["min"]


@dataclass(frozen=True)
class RunTable:
    """The usable runs of one source, as they were measured.

    ``runs`` keeps the injection matrix in its own column; :attr:`booked` is the same table as the
    law sees it. Counts are float64 (integer counts overflow in 6·N·D), losses are in nats.
    ``folders`` has the run folders by name of the run, none for a CSV.
    """

    runs: pd.DataFrame
    injection: Injection
    source: Path
    sha256: str
    dropped: list[Dropped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    folders: Mapping[str, RunFolder] = field(default_factory=dict, repr=False)

    @property
    def booked(self) -> pd.DataFrame:
        """``runs`` with the injection matrix booked as ``injection`` says."""
        return book_injection(self.runs, self.injection)

    def select(self, keep: pd.Series | np.ndarray) -> "RunTable":
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
    columns: Mapping[str, str] | None = None,
) -> RunTable:
    """Read, filter and check a table of runs.

    Args:
        path: a folder of run folders, or a CSV with the columns ``r, n_once, n_rec, tokens, loss``
            in any order, or ``N, D, loss`` (every run then has r = 1). Those of ``run, budget,
            n_inject, flops_per_token, train_flops`` that it lacks follow from the others.
        injection: how the law counts the injection matrix.
        where: a condition on the columns, such as ``"r in (1, 4) and budget < 3e18"``.
        group: ``"min"`` keeps the lowest loss among runs of the same (r, N, D).
        columns: for columns of other names, ours: theirs, such as ``{"n_rec": "params"}``.

    Raises:
        InputError: the file, row and column of what cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        source = read_folder(path, columns or {})
    elif path.is_file():
        source = read_csv(path, columns or {})
    else:
        raise InputError(f"{path}: no such file or folder")
    frame, dropped, notes = source.frame, source.dropped, source.notes
    if not frame.empty:
        notes = [*notes, *merge_rounded(frame)]
    if where is not None and not frame.empty:
        read = len(frame)
        frame = frame[rows_where(frame, where)].copy()
        if frame.empty:
            raise InputError(f"{path}: --where {where!r} leaves none of {read} runs")
    if frame.empty:
        raise InputError(f"{path}: no usable run{_first_reasons(dropped)}")
    check_values(frame, source.places, path)
    if group is not None:
        frame, grouped = _keep_minimum(frame)
        dropped = dropped + grouped
    frame = _tidy(frame)
    book_injection(frame, injection)  # refuses an unknown choice here, before any work
    warnings = [*notes, *data_warnings(frame)]
    return RunTable(frame, injection, path, source.sha256, dropped, warnings, source.folders)


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
