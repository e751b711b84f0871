"""Block bootstrap of a fitted law: how far its parameters move when blocks of runs are redrawn.

Runs of one (budget, r) cell share a compute budget, a learning-rate rule and a reading error, so
their residuals hang together; redrawing single runs gives intervals that are too narrow. Every
resample is refitted from several points, the main optimum among them, and counts only if its best
objective was reached more than once: one that missed its optimum is listed, not averaged in.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import AnalysisError, NotIdentifiedError
from analysis.laws.counting import BoolArray, FloatArray, Injection
from analysis.laws.power_laws import CHUNK
from analysis.laws.problem import Problem
from analysis.scaling.fit import (
    FitResult,
    booked_frame,
    free_exponents,
    make_problem,
    same_objective,
)
from analysis.tables.estimate import Draws
from analysis.tables.runs import RunTable

Unit = Literal["cell", "run", "budget", "r"]
UNITS: tuple[Unit, ...] = get_args(Unit)
UNIT_COLUMNS: dict[Unit, list[str]] = {
    "cell": ["budget", "r"],
    "run": ["run"],
    "budget": ["budget"],
    "r": ["r"],
}
UNIT_LABELS: dict[Unit, str] = {
    "cell": "(budget, r) cell",
    "run": "run",
    "budget": "budget",
    "r": "r",
}

#: The ends of a 95 % interval still move by a seventh of their standard error with 200 resamples.
RESAMPLES = 1000
#: Fewer blocks have too few distinct redraws for an interval.
MIN_BLOCKS = 6
#: With fewer blocks the interval is known to be somewhat too narrow.
FEW_BLOCKS = 20
#: Random starts of a resample of which no two agree on its optimum.
RETRIED = 32
#: Every resample also starts near the whole fit's optimum: so far off, in widths of the box.
JITTER = 0.05


@dataclass(frozen=True)
class Bootstrap:
    """Parameters of every resample.

    ``estimates`` has one row a resample, one column a parameter of the law; NaN where the
    resample could not be fitted: ``missed`` (no agreement on its optimum) or ``unidentified``
    (it drew a single r, or fewer runs than parameters).
    """

    unit: Unit
    n_blocks: int
    estimates: pd.DataFrame
    missed: int
    unidentified: int
    at_bounds: dict[str, int]

    @property
    def accepted(self) -> pd.DataFrame:
        """The resamples that count."""
        return self.estimates.dropna()

    @property
    def draws(self) -> Draws:
        """For intervals of anything that follows from the parameters."""
        return Draws(self.accepted)

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Percentile interval of one parameter."""
        tail = 0.5 * (1.0 - level)
        low, high = np.quantile(self.accepted[name].to_numpy(), [tail, 1.0 - tail])
        return float(low), float(high)

    def standard_error(self, name: str) -> float:
        """Standard deviation over resamples."""
        return float(self.accepted[name].std(ddof=1))

    def warnings(self) -> list[str]:
        """What a reader of the intervals must know."""
        found = []
        n = len(self.estimates)
        if self.n_blocks < FEW_BLOCKS:
            found.append(
                f"bootstrap: {self.n_blocks} blocks ({UNIT_LABELS[self.unit]}) are few: "
                "the intervals are likely too narrow"
            )
        if self.missed:
            found.append(
                f"bootstrap: {self.missed} of {n} resamples missed their optimum: left out"
            )
        if self.unidentified:
            found.append(
                f"bootstrap: {self.unidentified} of {n} resamples do not identify the law: left out"
            )
        for name, count in self.at_bounds.items():
            found.append(f"bootstrap: {name} at the edge of the box in {count} of {n} resamples")
        return found


def bootstrap_fit(
    runs: RunTable | pd.DataFrame,
    fit: FitResult,
    *,
    injection: Injection | None = None,
    unit: Unit = "cell",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Bootstrap:
    """Redraw blocks with replacement, refit, collect; pass what the fit was made from.

    Raises:
        NotIdentifiedError: fewer than six blocks, or next to no resample can be fitted.
    """
    if resamples < 2:
        raise AnalysisError(f"bootstrap {resamples}: at least 2 resamples")
    booked = booked_frame(runs, injection)
    problem = problem_of(fit, booked)
    rng = np.random.default_rng([seed, 1])
    block_N, n_blocks = blocks(booked, unit)
    counts_RB = draw_blocks(n_blocks, unit, resamples, rng)
    refits = refit(problem, fit.theta, counts_RB, block_N, rng)
    if refits.accepted_R.sum() < max(2, resamples // 2):
        raise NotIdentifiedError(
            f"bootstrap: only {int(refits.accepted_R.sum())} of {resamples} resamples can be fitted"
        )
    edge = problem.at_edge(refits.theta_RP) & refits.accepted_R[:, None]
    names = (*problem.law.coefficients, *problem.law.exponents)
    at_bounds = {n: int(count) for n, count in zip(names, edge.sum(0), strict=True) if count}
    return Bootstrap(
        unit,
        n_blocks,
        refits.frame(problem),
        missed=int((refits.identified_R & ~refits.accepted_R).sum()),
        unidentified=int((~refits.identified_R).sum()),
        at_bounds=at_bounds,
    )


def problem_of(fit: FitResult, counted: pd.DataFrame) -> Problem:
    """What a fit solved, on a table in which the injection is counted."""
    held = fit.phi is not None and not fit.is_free("phi")
    return make_problem(counted, fit.law.name, fit.phi if held else None)


def blocks(frame: pd.DataFrame, unit: Unit) -> tuple[NDArray[np.intp], int]:
    """The block of every run, numbered from 0, and how many there are."""
    if unit not in UNITS:
        raise AnalysisError(f"bootstrap unit {unit!r}: choose one of {', '.join(UNITS)}")
    number = frame.groupby(UNIT_COLUMNS[unit], sort=True).ngroup().to_numpy(np.intp)
    return number, int(number.max()) + 1


def draw_blocks(
    n_blocks: int, unit: Unit, resamples: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How often each block is drawn in each resample, (R, B)."""
    if n_blocks < MIN_BLOCKS:
        raise NotIdentifiedError(
            f"bootstrap: {n_blocks} blocks of unit {UNIT_LABELS[unit]} are too few: "
            f"at least {MIN_BLOCKS}"
        )
    return rng.multinomial(n_blocks, np.full(n_blocks, 1.0 / n_blocks), resamples)


@dataclass(frozen=True)
class Refits:
    """Refits of R weightings: θ (R, P), which the data identify, and which found their optimum."""

    theta_RP: FloatArray
    identified_R: BoolArray
    accepted_R: BoolArray

    def frame(self, problem: Problem) -> pd.DataFrame:
        """The law's parameters, one row a refit; NaN where it was not accepted."""
        theta = np.where(self.accepted_R[:, None], self.theta_RP, np.nan)
        return pd.DataFrame(problem.law.params(theta))[list(problem.law.names)]


def refit(
    problem: Problem,
    theta_P: FloatArray,
    counts_RB: NDArray[np.int64],
    block_N: NDArray[np.intp],
    rng: np.random.Generator,
) -> Refits:
    """Fit every weighting from ``theta_P`` and around it; run i weighs ``counts_RB[:, block_i]``.

    A weighting that finds no agreement near ``theta_P`` is searched again over the whole box.
    """
    n_resamples, n_runs = len(counts_RB), len(problem.loss_N)
    warm = problem.exponents(theta_P)
    width = problem.exponents(problem.upper_P - problem.lower_P)
    theta = np.full((n_resamples, len(theta_P)), np.nan)
    identified = np.zeros(n_resamples, bool)
    accepted = np.zeros(n_resamples, bool)
    size = max(1, 4 * CHUNK // n_runs)  # as many weights at a time as a few chunks hold
    for first in range(0, n_resamples, size):
        rows = slice(first, first + size)
        weights = counts_RB[rows][:, block_N].astype(np.float64)
        identified[rows] = _identified(problem, weights)
        fitted = np.flatnonzero(identified[rows])
        shape = (len(fitted), 1, len(warm))
        near = warm + JITTER * width * rng.standard_normal(shape)
        anywhere = _random(problem, len(fitted), problem.law.solver.resample_starts, rng)
        starts = np.concatenate([np.broadcast_to(warm, shape), near, anywhere], axis=1)
        best, agreed = _best_agreed(problem, starts, weights[fitted])
        again = np.flatnonzero(~agreed)
        if len(again):
            starts = _random(problem, len(again), RETRIED, rng)
            best[again], agreed[again] = _best_agreed(problem, starts, weights[fitted[again]])
        theta[first + fitted], accepted[first + fitted] = best, agreed
    return Refits(theta, identified, accepted)


def _identified(problem: Problem, weights_RN: FloatArray) -> BoolArray:
    """Which weightings hold more runs than parameters and, if an exponent acts on it, two r."""
    drawn = weights_RN > 0
    enough = drawn.sum(1) > problem.free_P.sum()
    if any(e.acts_on == "r" for e in free_exponents(problem)):
        looped = drawn & (problem.runs.n_rec > 0)
        high = np.where(looped, problem.runs.r, -np.inf).max(axis=1)
        low = np.where(looped, problem.runs.r, np.inf).min(axis=1)
        enough &= high > low
    return enough


def _random(problem: Problem, n: int, starts: int, rng: np.random.Generator) -> FloatArray:
    """Exponents (n, starts, J) anywhere in the box."""
    drawn = problem.random_starts(n * starts, rng)
    return drawn.reshape(n, starts, drawn.shape[1])


def _best_agreed(
    problem: Problem, starts_RSJ: FloatArray, weights_RN: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """The best of S starts for each weighting, and whether two agree on it."""
    n, starts, _ = starts_RSJ.shape
    repeated = np.repeat(weights_RN, starts, axis=0)
    ends = problem.law.solver.solve(problem, starts_RSJ.reshape(n * starts, -1), repeated)
    objective = ends.objective_S.reshape(n, starts)
    at = np.arange(n) * starts + objective.argmin(1)
    agreed = same_objective(objective, ends.objective_S[at][:, None], problem).sum(1) >= 2
    return ends.theta_SP[at], agreed & ends.converged_S[at]
