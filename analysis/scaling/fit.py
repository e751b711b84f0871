"""Fit a law to a table of runs, and show that the optimum was reached.

Every fit starts from many random points of the exponents' box; the result says how many of them
ended at its objective, which parameters stand at the edge of the box, and how well the data
separate the parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, NotIdentifiedError
from analysis.laws.catalogue import law_for
from analysis.laws.counting import BoolArray, FloatArray, Injection, book_injection
from analysis.laws.law import FittedLaw, Law, Runs
from analysis.laws.problem import Minima, Problem, jacobian
from analysis.tables.runs import RunTable

#: Two fits have the same optimum when their objectives differ by less than this share.
SAME_OBJECTIVE = 1e-6
#: Above this condition number of the scaled, centred Jacobian some combination of parameters is
#: undetermined. A full iso-FLOP grid of 116 runs has about 150.
MAX_CONDITION = 1000.0
#: A standard error of the log of a coefficient above this is more than a factor e.
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

    ``whole`` is the condition number of the Jacobian, columns scaled to one and every coefficient
    taken at the middle of its term, as (log A, α) are at the middle of log N; ``standard_errors``
    are asymptotic, for independent errors of equal size, by name of θ (those held are absent).
    """

    whole: float
    standard_errors: dict[str, float]


@dataclass(frozen=True, repr=False)
class FitResult:
    """A fitted law and how it was reached.

    Residuals are measured minus predicted losses, nats, in the order of the table; ``r2``,
    ``rmse`` and ``max_abs_residual`` are of those. ``theta``, ``free`` and ``at_bounds`` are in
    terms of ``law.theta_names``.
    """

    law: Law
    params: dict[str, float]
    objective: float
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
    def fitted(self) -> FittedLaw:
        """The law with these parameters."""
        return FittedLaw(self.law, self.params)

    @property
    def phi(self) -> float | None:
        """φ, for a law that has it."""
        return self.params.get("phi")

    @property
    def n_runs(self) -> int:
        """How many runs were fitted."""
        return len(self.residuals)

    def predict(self, runs: pd.DataFrame, injection: Injection = "once") -> FloatArray:
        """Loss in nats of every row of a table (``n_once``, ``n_rec``, ``n_inject``, …)."""
        return self.fitted.predict(Runs.of(book_injection(runs, injection)))

    def is_free(self, name: str) -> bool:
        """Whether a parameter was fitted, not held."""
        return self.law.is_named(name, self.free)

    @property
    def values(self) -> str:
        """The parameters, such as "φ = 0.4576, α = 0.2003"."""
        return ", ".join(f"{self.law.symbols[n]} = {v:.4g}" for n, v in self.params.items())

    def __repr__(self) -> str:
        return (
            f"{self.law.title}, {self.n_runs} runs: {self.values}; RMSE {self.rmse:.4f} nats, "
            f"{self.starts.at_optimum} of {self.starts.n} starts at the optimum"
        )

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
        parts = []
        for name, exponent in self.law.exponents.items():
            if exponent.coefficient is None:
                continue
            error = errors.get(f"log_{exponent.coefficient}", 0.0)
            if error > MAX_LOG_ERROR:
                factor = np.exp(min(error, 700.0))
                parts.append(f"{exponent.coefficient} (standard error a factor {factor:.2g})")
            value = self.params[name]
            if errors.get(name, 0.0) > 0.5 * value:
                parts.append(f"{name} = {value:.3g} ± {errors[name]:.2g}")
        if not parts and self.condition.whole > MAX_CONDITION:
            parts.append("the parameters together")
        return ", ".join(parts)


def fit(
    runs: RunTable | pd.DataFrame,
    law: str = "joint",
    *,
    injection: Injection | None = None,
    phi: float | None = None,
    starts: int | None = None,
    seed: int = 0,
) -> FitResult:
    """Fit a law of ``laws.catalogue``.

    Args:
        runs: a table from ``load_runs`` or a frame with its columns (injection not counted).
        injection: how it is counted; a table's own choice, or ``"once"``, when not given.
        phi: hold φ at this value instead of fitting it.
        starts: random starts; the law's own number when not given.

    Raises:
        NotIdentifiedError: the runs cannot determine the parameters whatever the optimiser returns.
    """
    counted = booked_frame(runs, injection)
    problem = make_problem(counted, law, phi)
    check_identified(problem)
    n = problem.law.solver.starts if starts is None else starts
    best, reached = search(problem, n, seed)
    return _result(problem, best, reached)


def booked_frame(runs: RunTable | pd.DataFrame, injection: Injection | None) -> pd.DataFrame:
    """The table as the law sees it, whichever way it was passed."""
    if isinstance(runs, RunTable):
        return book_injection(runs.runs, injection or runs.injection)
    return book_injection(runs, injection or "once")


def make_problem(counted: pd.DataFrame, law: str, phi: float | None = None) -> Problem:
    """A law by name on a table in which the injection is counted; ``phi`` holds φ."""
    found = law_for(law, counted)
    if phi is not None and not found.has_phi:
        raise AnalysisError(f"phi {phi:g}: the {found.title} has no φ to hold")
    return Problem.of(found, counted, None if phi is None else {"phi": phi})


def check_identified(problem: Problem) -> None:
    """More runs than free parameters, and enough that varies to hold every exponent."""
    n_runs, n_free = len(problem.loss_N), int(problem.free_P.sum())
    runs = problem.runs
    values = {
        "r": np.unique(runs.r[runs.n_rec > 0]),
        "N": np.unique(np.log(runs.n_effective(0.0)).round(9)),
        "D": np.unique(np.log(runs.tokens).round(9)),
    }
    acted_on = {e.acts_on: e.symbol for e in free_exponents(problem)}
    if "r" in acted_on and len(values["r"]) < 2:
        held = f"r = {values['r'][0]:g}" if len(values["r"]) else "no recurrent part"
        symbol, who = acted_on["r"], f"all {n_runs} runs have" if n_runs > 1 else "the one run has"
        raise NotIdentifiedError(
            f"{symbol} is not identified: {who} {held}, and {symbol} needs at "
            f"least two values of r; fix {symbol}, or fit --law=chinchilla"
        )
    if n_runs <= n_free:
        raise NotIdentifiedError(f"{n_runs} runs cannot determine {n_free} parameters")
    for name in ("N", "D"):
        if name in acted_on and len(values[name]) < 3:
            raise NotIdentifiedError(
                f"{n_runs} runs with {len(values[name])} value(s) of {name}: "
                f"the law's exponent of {name} needs at least three"
            )


def free_exponents(problem: Problem):
    """The exponents that are fitted, as declared."""
    free = problem.exponents(problem.free_P)
    return [e for e, is_free in zip(problem.law.exponents.values(), free, strict=True) if is_free]


def search(problem: Problem, starts: int, seed: int | Sequence[int]) -> tuple[Minima, Starts]:
    """The best of many random starts (a ``Minima`` of one row), and how many agree with it."""
    if starts < 1:
        raise AnalysisError(f"starts {starts}: at least 1")
    exponents = problem.random_starts(starts, np.random.default_rng(seed))
    ends = problem.law.solver.solve(problem, exponents, np.ones((1, len(problem.loss_N))))
    best = int(ends.objective_S.argmin())
    agreeing = same_objective(ends.objective_S, ends.objective_S[best], problem)
    return ends[[best]], Starts(starts, int(agreeing.sum()))


def same_objective(
    objective_S: FloatArray, best: FloatArray | float, problem: Problem
) -> BoolArray:
    """Within 1e-6 of the best, or both at rounding level (data without noise)."""
    rounding = 1e-20 * len(problem.loss_N)
    return np.asarray(objective_S <= np.asarray(best) * (1.0 + SAME_OBJECTIVE) + rounding)


def _result(problem: Problem, best: Minima, reached: Starts) -> FitResult:
    law, loss, theta = problem.law, problem.loss_N, best.theta_SP[0]
    params = law.params(theta)
    residuals = loss - law.predict(params, problem.runs)
    spread = float(((loss - loss.mean()) ** 2).sum())
    return FitResult(
        law=law,
        params=params,
        objective=float(best.objective_S[0]),
        r2=1.0 - float((residuals**2).sum()) / spread if spread > 0 else float("nan"),
        rmse=float(np.sqrt((residuals**2).mean())),
        max_abs_residual=float(np.abs(residuals).max()),
        residuals=residuals,
        starts=reached,
        converged=bool(best.converged_S[0]),
        free=_names(law, problem.free_P),
        at_bounds=_names(law, problem.at_edge(theta)),
        condition=_condition(problem, theta),
        theta=theta,
    )


def _condition(problem: Problem, theta_P: FloatArray) -> Condition:
    law, free = problem.law, problem.free_P
    jacobian_PN = jacobian(problem.residuals, theta_P)
    # Coefficients at the middle of their terms: a shear that leaves the exponents as they are.
    shear = np.eye(len(theta_P))
    names = law.theta_names
    for name, exponent in law.exponents.items():
        if exponent.coefficient is not None:
            row, term = names.index(name), names.index(f"log_{exponent.coefficient}")
            shear[row, term] = -_weighted_mean(jacobian_PN[row], jacobian_PN[term])
    middle = (shear @ jacobian_PN)[free]
    size = np.maximum(np.linalg.norm(middle, axis=1), 1e-150)
    singular = np.linalg.svd(middle / size[:, None], compute_uv=False)
    residual = problem.residuals(theta_P[None])[0]
    variance = float((residual**2).sum()) / max(len(residual) - len(middle), 1)
    scaled = np.linalg.pinv((middle @ middle.T) / np.outer(size, size), hermitian=True)
    covariance = variance * scaled / np.outer(size, size)
    back = shear[np.ix_(free, free)].T
    errors = np.sqrt(np.maximum(np.diag(back @ covariance @ back.T), 0.0))
    return Condition(
        whole=float(singular[0] / max(singular[-1], 1e-300)),
        standard_errors=dict(zip(_names(law, free), errors.tolist(), strict=True)),
    )


def _names(law: Law, mask_P: BoolArray) -> tuple[str, ...]:
    return tuple(name for name, chosen in zip(law.theta_names, mask_P, strict=True) if chosen)


def _weighted_mean(derivative_N: FloatArray, share_N: FloatArray) -> float:
    total = float(share_N @ share_N)
    return float(derivative_N @ share_N) / total if total > 0 else 0.0
