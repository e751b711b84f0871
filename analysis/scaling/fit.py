"""Fit the joint law or a Chinchilla law to a table of runs, and show that the optimum was reached.

Σ Huber (δ = 1e-3) of log L̂ − log L inside the box of arXiv:2604.21106. Every fit starts from many
random points of (α, β, φ); the result says how many of them ended at its objective, which
parameters stand at the edge of the box, and how well the data separate the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, NotIdentifiedError
from analysis.laws.laws import ChinchillaLaw, FloatArray, Injection, JointLaw, book_injection
from analysis.laws.newton import Minima, minimise, residual_jacobian
from analysis.laws.problem import LOWER, NAMES, PHI, UPPER, BoolArray, Problem
from analysis.laws.projection import project
from analysis.tables.runs import RunTable

DELTA = 1e-3
STARTS = 500
#: Two fits have the same optimum when their objectives differ by less than this share.
SAME_OBJECTIVE = 1e-6
#: Above this condition number of the scaled, centred Jacobian some combination of parameters is
#: undetermined. A full iso-FLOP grid of 116 runs has about 150.
MAX_CONDITION = 1000.0
#: A standard error of log A or log B above this is more than a factor e.
MAX_LOG_ERROR = 1.0


@dataclass(frozen=True)
class Starts:
    """How many starts were made, and how many ended at the optimum (to 1e-6 of the objective)."""

    n: int
    at_optimum: int

    @property
    def share(self) -> float:
        """``at_optimum / n``."""
        return self.at_optimum / self.n


@dataclass(frozen=True)
class Condition:
    """How well the data separate the parameters, at the optimum.

    ``whole`` is the condition number of the Jacobian, columns scaled to one and (log A, α),
    (log B, β) taken at the middle of the data; ``standard_errors`` are asymptotic, for independent
    errors of equal size, by parameter (log E, log A, log B, α, β, φ; those held fixed are absent).
    """

    whole: float
    standard_errors: dict[str, float]


@dataclass(frozen=True)
class FitResult:
    """A fitted law and how it was reached.

    Residuals are measured minus predicted losses, nats, in the order of the table; ``r2``,
    ``rmse`` and ``max_abs_residual`` are of those. ``objective`` is Σ Huber on log losses.
    ``theta`` is (log E, log A, log B, α, β, φ); ``free`` and ``at_bounds`` name some of these.
    """

    law: JointLaw | ChinchillaLaw
    objective: float
    delta: float
    r2: float
    rmse: float
    max_abs_residual: float
    residuals: FloatArray
    starts: Starts
    converged: bool
    free: tuple[str, ...]
    at_bounds: tuple[str, ...]
    condition: Condition
    theta: FloatArray

    @property
    def params(self) -> dict[str, float]:
        """The parameters by name."""
        return self.law.params()

    @property
    def n_runs(self) -> int:
        """How many runs were fitted."""
        return len(self.residuals)

    def warnings(self, what: str) -> list[str]:
        """Doubts about whether this is the optimum, and an inner one; ``what`` names the fit."""
        found = []
        if not self.converged:
            found.append(f"{what}: the optimiser stopped before a minimum")
        if self.starts.n > 1 and self.starts.at_optimum < 2:
            found.append(f"{what}: only one of {self.starts.n} starts reached the best objective")
        if self.at_bounds:
            found.append(f"{what}: at the edge of the box: {', '.join(self.at_bounds)}")
        return found

    def weaknesses(self, what: str) -> list[str]:
        """Parameters that the data hardly determine, with the condition number."""
        loose = self._loose()
        if not loose:
            return []
        return [f"{what}: poorly determined: {loose} (condition {self.condition.whole:.3g})"]

    def _loose(self) -> str:
        errors = self.condition.standard_errors
        parts = [
            f"{name[-1]} (standard error a factor {np.exp(min(errors[name], 700.0)):.2g})"
            for name in ("log_A", "log_B")
            if errors.get(name, 0.0) > MAX_LOG_ERROR
        ]
        for name in ("alpha", "beta"):
            value = self.params[name]
            if name in errors and errors[name] > 0.5 * value:
                parts.append(f"{name} = {value:.3g} ± {errors[name]:.2g}")
        if not parts and self.condition.whole > MAX_CONDITION:
            parts.append("the parameters together")
        return ", ".join(parts)


def fit_joint(
    runs: RunTable | pd.DataFrame,
    *,
    injection: Injection | None = None,
    phi: float | None = None,
    starts: int = STARTS,
    delta: float = DELTA,
    seed: int = 0,
) -> FitResult:
    """Fit L = E + A·(N_once + r^φ·N_rec)^−α + B·D^−β.

    Args:
        runs: a table from ``load_runs`` or a frame with its columns (injection not booked).
        injection: the booking; a table's own, or ``"once"`` for a frame, when not given.
        phi: hold φ at this value instead of fitting it.
        starts: random starts in (α, β, φ).

    Raises:
        NotIdentifiedError: the runs cannot determine the parameters whatever the optimiser returns.
    """
    booked = booked_frame(runs, injection)
    problem = Problem.from_booked(booked, delta)
    if phi is None:
        check_phi_identified(booked)
    else:
        if not LOWER[PHI] <= phi <= UPPER[PHI]:
            raise AnalysisError(f"phi {phi:g}: allowed is {LOWER[PHI]:g} to {UPPER[PHI]:g}")
        problem = problem.fixed(PHI, phi)
    best, counted = search(problem, starts, seed)
    theta = best.theta_SP[0]
    e, a, b = np.exp(theta[:3])
    law = JointLaw(
        E=float(e),
        A=float(a),
        B=float(b),
        alpha=float(theta[3]),
        beta=float(theta[4]),
        phi=float(theta[PHI]),
    )
    return _result(problem, booked, law, law.predict_frame(booked), best, counted)


def fit_chinchilla(
    runs: RunTable | pd.DataFrame,
    *,
    injection: Injection | None = None,
    starts: int = STARTS,
    delta: float = DELTA,
    seed: int = 0,
) -> FitResult:
    """Fit L = E + A·N^−α + B·D^−β with N = N_once + N_rec, each parameter counted once."""
    booked = booked_frame(runs, injection)
    problem = Problem.from_booked(booked, delta).fixed(PHI, 0.0)
    best, counted = search(problem, starts, seed)
    theta = best.theta_SP[0]
    e, a, b = np.exp(theta[:3])
    law = ChinchillaLaw(
        E=float(e), A=float(a), B=float(b), alpha=float(theta[3]), beta=float(theta[4])
    )
    predicted = law.predict(booked["n_once"] + booked["n_rec"], booked["tokens"])
    return _result(problem, booked, law, predicted, best, counted)


def booked_frame(runs: RunTable | pd.DataFrame, injection: Injection | None) -> pd.DataFrame:
    """The table as the law sees it, whichever way it was passed."""
    if isinstance(runs, RunTable):
        return book_injection(runs.runs, injection or runs.injection)
    return book_injection(runs, injection or "once")


def check_phi_identified(booked: pd.DataFrame) -> None:
    """φ acts through r^φ only: it needs two values of r with a recurrent part."""
    values = sorted(booked.loc[booked["n_rec"] > 0, "r"].unique())
    if len(values) < 2:
        held = f"r = {values[0]:g}" if values else "no recurrent part"
        raise NotIdentifiedError(
            f"φ is not identified: all {len(booked)} runs have {held}, and φ needs at least two "
            "values of r; fix φ, or fit --law=chinchilla"
        )


def check_law_identified(problem: Problem) -> None:
    """More runs than free parameters, and three sizes and token counts to hold an exponent."""
    n_runs, n_free = len(problem.log_loss_N), int(problem.free_P.sum())
    if n_runs <= n_free:
        raise NotIdentifiedError(f"{n_runs} runs cannot determine {n_free} parameters")
    sizes = np.unique(np.logaddexp(problem.log_once_N, problem.log_rec_N).round(9))
    tokens = np.unique(problem.log_tokens_N.round(9))
    for name, values in (("N", sizes), ("D", tokens)):
        if len(values) < 3:
            raise NotIdentifiedError(
                f"{n_runs} runs with {len(values)} value(s) of {name}: "
                f"the law's exponent of {name} needs at least three"
            )


def search(problem: Problem, starts: int, seed: int | Sequence[int]) -> tuple[Minima, Starts]:
    """The best of many random starts (a ``Minima`` of one row), and how many agree with it."""
    check_law_identified(problem)
    if starts < 1:
        raise AnalysisError(f"starts {starts}: at least 1")
    equal_weights = np.ones((1, len(problem.log_loss_N)))
    shapes = problem.random_starts(starts, np.random.default_rng(seed))
    ends = minimise(problem, project(problem, shapes, equal_weights), equal_weights)
    best = int(ends.objective_S.argmin())
    agreeing = same_objective(ends.objective_S, ends.objective_S[best], problem)
    return ends[[best]], Starts(starts, int(agreeing.sum()))


def same_objective(
    objective_S: FloatArray, best: FloatArray | float, problem: Problem
) -> BoolArray:
    """Within 1e-6 of the best, or both at rounding level (data without noise)."""
    rounding = 1e-20 * len(problem.log_loss_N)
    return np.asarray(objective_S <= np.asarray(best) * (1.0 + SAME_OBJECTIVE) + rounding)


def _result(
    problem: Problem,
    booked: pd.DataFrame,
    law: JointLaw | ChinchillaLaw,
    predicted: FloatArray,
    best: Minima,
    counted: Starts,
) -> FitResult:
    loss = booked["loss"].to_numpy(np.float64)
    residuals = loss - predicted
    theta = best.theta_SP[0]
    edge = (theta - problem.lower_P <= 1e-9) | (problem.upper_P - theta <= 1e-9)
    spread = float(((loss - loss.mean()) ** 2).sum())
    return FitResult(
        law=law,
        objective=float(best.objective_S[0]),
        delta=problem.delta,
        r2=1.0 - float((residuals**2).sum()) / spread if spread > 0 else float("nan"),
        rmse=float(np.sqrt((residuals**2).mean())),
        max_abs_residual=float(np.abs(residuals).max()),
        residuals=residuals,
        starts=counted,
        converged=bool(best.converged_S[0]),
        free=_names(problem.free_P),
        at_bounds=_names(edge & problem.free_P),
        condition=_condition(problem, theta),
        theta=theta,
    )


def _condition(problem: Problem, theta_P: FloatArray) -> Condition:
    jacobian_PN, residual_N = residual_jacobian(problem, theta_P)
    free = problem.free_P
    jacobian = jacobian_PN[free].T
    n_runs, n_free = jacobian.shape
    middle = jacobian_PN.copy()
    # (log A, α) at the middle of log N and (log B, β) at the middle of log D: see newton._metric.
    middle[3] -= middle[1] * _weighted_mean(middle[3], middle[1])
    middle[4] -= middle[2] * _weighted_mean(middle[4], middle[2])
    scaled = middle[free].T
    scaled = scaled / np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
    singular = np.linalg.svd(scaled, compute_uv=False)
    variance = float((residual_N**2).sum()) / max(n_runs - n_free, 1)
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-15, hermitian=True)
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return Condition(
        whole=float(singular[0] / max(singular[-1], 1e-300)),
        standard_errors=dict(zip(_names(free), errors.tolist(), strict=True)),
    )


def _names(mask_P: BoolArray) -> tuple[str, ...]:
    return tuple(name for name, chosen in zip(NAMES, mask_P, strict=True) if chosen)


def _weighted_mean(derivative_N: FloatArray, share_N: FloatArray) -> float:
    total = float(share_N @ share_N)
    return float(derivative_N @ share_N) / total if total > 0 else 0.0
