"""The local law beside the study's law: its interval, and how far choices of counting move its φ.

A choice can move φ by more than the interval is wide, so these stand beside every φ.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize

from analysis.errors import NotIdentifiedError
from analysis.laws.counting import INJECTIONS, FloatArray
from analysis.laws.law import Runs
from analysis.laws.problem import Problem
from analysis.scaling.bootstrap import problem_of
from analysis.scaling.fit import FitResult, fit
from analysis.scaling.jackknife import Jackknife, jackknife
from analysis.tables.estimate import Estimate
from analysis.tables.runs import RunTable


@dataclass(frozen=True)
class LocalStudy:
    """The local law on a study's runs.

    Attributes:
      cells: without one (budget, r) cell at a time: the interval of φ comes from these.
      without_r: φ without all runs of one r, None where too little is left.
      over_r: the 95 % interval if r, not cells, were drawn at random, with t of few degrees.
      injection: φ by where the injection matrix is counted.
      embeddings, head: φ with all embeddings, and with the unembedding, vocabulary × width, counted
        in N_once; None where the table does not tell them.
      worth_per_r: log g_r / log r with a free worth g_r for each r in place of r^φ.
    """

    fit: FitResult
    cells: Jackknife
    without_r: dict[float, float | None]
    over_r: tuple[float, float] | None
    injection: dict[str, float | None]
    embeddings: float | None
    head: float | None
    worth_per_r: dict[float, float] | None

    @property
    def phi(self) -> float:
        return self.fit.params["phi"]

    @property
    def estimate(self) -> Estimate:
        """φ with its standard error and 95 % interval over cells."""
        return self.cells.estimate("phi", self.phi)


def study_locally(table: RunTable) -> LocalStudy:
    """Fit the local law and everything that says how far to trust its φ.

    Raises:
        NotIdentifiedError: too few runs, r, widths, tokens or cells (the message says which).
    """
    counted = table.booked
    fitted = fit(table, "local")
    without_r, over_r = _over_r(table, fitted)
    return LocalStudy(
        fit=fitted,
        cells=jackknife(counted, fitted),
        without_r=without_r,
        over_r=over_r,
        injection={
            choice: _phi(lambda choice=choice: fit(table, "local", injection=choice))  # type: ignore[misc]
            for choice in INJECTIONS
        },
        embeddings=_counted_once(table, _embeddings(table.runs)),
        head=_counted_once(table, _head(table.runs)),
        worth_per_r=worth_per_r(problem_of(fitted, counted), fitted.theta),
    )


def worth_per_r(problem: Problem, theta_P: FloatArray) -> dict[float, float] | None:
    """log g_r / log r for every r > 1, with N_eff = N_once + g_r·N_rec and g_1 = 1.

    None without runs of r = 1 to measure against.
    """
    runs = problem.runs
    values = np.unique(runs.r[runs.n_rec > 0])
    if values[0] != 1 or len(values) < 2:
        return None
    which = np.searchsorted(values, runs.r)

    def residuals(log_g: FloatArray) -> FloatArray:
        worth = np.exp(np.append(0.0, log_g))[which]
        once = Runs(runs.n_once, runs.n_rec * worth, np.ones_like(runs.r), runs.tokens)
        columns = problem.law.columns({"phi": 0.0}, once)
        X_NK = np.stack([np.broadcast_to(c, worth.shape) for c in columns], axis=1)
        solved, *_ = np.linalg.lstsq(X_NK, problem.loss_N, rcond=None)
        return X_NK @ solved - problem.loss_N

    log_r = np.log(values[1:])
    start = problem.law.params(theta_P)["phi"] * log_r
    found = optimize.least_squares(residuals, start, x_scale=0.1)
    return dict(zip(values[1:].tolist(), (found.x / log_r).tolist(), strict=True))


def _over_r(
    table: RunTable, fitted: FitResult
) -> tuple[dict[float, float | None], tuple[float, float] | None]:
    values = [float(r) for r in np.unique(table.runs["r"])]
    without = {
        r: _phi(lambda r=r: fit(table.select(table.runs["r"] != r), "local"))  # type: ignore[misc]
        for r in values
    }
    if len(values) < 3 or None in without.values():
        return without, None
    over_r = jackknife(table.booked, fitted, "r")
    return without, over_r.estimate("phi", fitted.params["phi"]).ci95


def _embeddings(runs: pd.DataFrame) -> pd.Series | None:
    """Parameters outside the matrices that the law counts, where the table has their total."""
    if not _has_numbers(runs, "n_total"):
        return None
    return runs["n_total"] - runs[["n_once", "n_rec", "n_inject"]].sum(axis=1)


def _head(runs: pd.DataFrame) -> pd.Series | None:
    if not _has_numbers(runs, "vocab_size", "d_model"):
        return None
    return runs["vocab_size"] * runs["d_model"]


def _has_numbers(runs: pd.DataFrame, *columns: str) -> bool:
    return all(name in runs and pd.api.types.is_numeric_dtype(runs[name]) for name in columns)


def _counted_once(table: RunTable, more: pd.Series | None) -> float | None:
    """φ with more parameters counted in N_once."""
    if more is None:
        return None
    runs = table.runs.assign(n_once=table.runs["n_once"] + more)
    return _phi(lambda: fit(runs, "local", injection=table.injection))


def _phi(make: Callable[[], FitResult]) -> float | None:
    try:
        return make().params["phi"]
    except NotIdentifiedError:
        return None


def sizes(runs: pd.DataFrame) -> tuple[float, float]:
    """The smallest and largest number of unique parameters, embeddings included where known."""
    if _has_numbers(runs, "n_total"):
        n = runs["n_total"].to_numpy(np.float64)
    else:
        n = runs[["n_once", "n_rec", "n_inject"]].to_numpy(np.float64).sum(axis=1)
    return float(n.min()), float(n.max())
