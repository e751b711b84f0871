"""Does the law hold outside the runs it was fitted to? Halves by budget, and parts left out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.errors import AnalysisError, NotIdentifiedError
from analysis.laws.counting import FloatArray
from analysis.laws.law import Runs
from analysis.scaling.fit import FitResult
from analysis.tables.runs import RunTable

#: A half needs two budgets to tell size from data at all.
MIN_BUDGETS_FOR_HALVES = 4

By = Literal["r", "budget"]


@dataclass(frozen=True)
class Errors:
    """Measured minus predicted losses of some runs, nats."""

    n: int
    mean: float
    max_abs: float
    rmse: float


def errors(residuals: FloatArray) -> Errors:
    """Summary of residuals (measured minus predicted)."""
    return Errors(
        n=len(residuals),
        mean=float(residuals.mean()),
        max_abs=float(np.abs(residuals).max()),
        rmse=float(np.sqrt((residuals**2).mean())),
    )


@dataclass(frozen=True)
class Half:
    """A fit to the lower or the upper half of the budgets."""

    budgets: tuple[float, ...]
    fit: FitResult


@dataclass(frozen=True)
class LeftOut:
    """A fit without some runs, and how far its predictions of those are off."""

    values: tuple[float, ...]
    fit: FitResult
    errors: Errors


def split_by_budget(table: RunTable) -> tuple[RunTable, RunTable]:
    """Lower and upper half of the budgets; of an odd number the middle one goes to the lower."""
    budgets = np.unique(table.runs["budget"])
    if len(budgets) < MIN_BUDGETS_FOR_HALVES:
        raise NotIdentifiedError(
            f"{len(budgets)} budget(s): halves need at least {MIN_BUDGETS_FOR_HALVES}"
        )
    last_low = budgets[(len(budgets) + 1) // 2 - 1]
    low = table.runs["budget"] <= last_low
    return table.select(low), table.select(~low)


def fit_half(half: RunTable, fit: Callable[[RunTable], FitResult]) -> Half:
    """The law on one half; ``fit`` fits it."""
    return Half(tuple(float(b) for b in np.unique(half.runs["budget"])), fit(half))


def leave_out(
    table: RunTable, by: By, values: tuple[float, ...], fit: Callable[[RunTable], FitResult]
) -> LeftOut:
    """Fit without the runs whose ``by`` is among ``values``; predict those."""
    left_out = table.runs[by].isin(values)
    without = fit(table.select(~left_out))
    return LeftOut(values, without, prediction_errors(without, table.select(left_out)))


def prediction_errors(fit: FitResult, unseen: RunTable) -> Errors:
    """Errors of a fit on runs it has not seen."""
    predicted = fit.fitted.predict(Runs.of(unseen.booked))
    return errors(unseen.runs["loss"].to_numpy(np.float64) - predicted)


def largest_budgets(table: RunTable, n: int) -> tuple[float, ...]:
    """The ``n`` largest budgets, of which at least one other must remain."""
    budgets = np.unique(table.runs["budget"])
    if not 1 <= n < len(budgets):
        raise AnalysisError(f"holdout {n}: allowed is 1 to {len(budgets) - 1} of the budgets here")
    return tuple(float(b) for b in budgets[-n:])
