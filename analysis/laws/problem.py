"""The fitting problem: a law, the runs, the box; and what every solver returns.

Shapes of all solvers: S fits (starts × weightings), P parameters in the order of
``Law.theta_names``, K coefficients, J exponents, N runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.laws.counting import BoolArray, FloatArray
from analysis.laws.law import Law, Runs

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True)
class Minima:
    """Where S fits ended: θ, the objective, and whether each is at a minimum."""

    theta_SP: FloatArray
    objective_S: FloatArray
    converged_S: BoolArray

    def __getitem__(self, rows: Any) -> "Minima":
        return Minima(self.theta_SP[rows], self.objective_S[rows], self.converged_S[rows])


@dataclass(frozen=True)
class Problem:
    """What is fitted. The objective of a weighting w is Σ w·Huber(log L̂ − log L), or, for a law
    without δ, Σ w·(L̂ − L)²/2."""

    law: Law
    runs: Runs
    loss_N: FloatArray
    lower_P: FloatArray
    upper_P: FloatArray

    @staticmethod
    def of(law: Law, counted: pd.DataFrame, held: Mapping[str, float] | None = None) -> "Problem":
        """A law on a table in which the injection is counted; ``held`` fixes exponents."""
        coefficients = [
            (-np.inf, np.inf) if c.signed else (c.log_low, c.log_high)
            for c in law.coefficients.values()
        ]
        exponents = {name: (e.low, e.high) for name, e in law.exponents.items()}
        for name, value in (held or {}).items():
            low, high = exponents[name]
            if not low <= value <= high:
                raise AnalysisError(f"{name} {value:g}: allowed is {low:g} to {high:g}")
            exponents[name] = (value, value)
        lower, upper = np.array([*coefficients, *exponents.values()], np.float64).T
        return Problem(law, Runs.of(counted), counted["loss"].to_numpy(np.float64), lower, upper)

    @property
    def free_P(self) -> BoolArray:
        """Which parameters may move."""
        return self.lower_P < self.upper_P

    @property
    def n_coefficients(self) -> int:
        return len(self.law.coefficients)

    def exponents(self, theta: NDArray[T]) -> NDArray[T]:
        """The exponents' part of θ."""
        return theta[..., self.n_coefficients :]

    def random_starts(self, n: int, rng: np.random.Generator) -> FloatArray:
        """(n, J) uniform draws of the exponents from their box."""
        low, high = self.exponents(self.lower_P), self.exponents(self.upper_P)
        return rng.uniform(low, high, (n, len(low)))

    def at_edge(self, theta: FloatArray) -> BoolArray:
        """Free parameters at (or beyond) an edge of the box."""
        edge = (theta <= self.lower_P + 1e-9) | (theta >= self.upper_P - 1e-9)
        return np.asarray(edge & self.free_P)

    def residuals(self, theta_SP: FloatArray) -> FloatArray:
        """log L̂ − log L, or L̂ − L for a law without δ, (S, N)."""
        params = {name: v[:, None] for name, v in self.law.params(theta_SP).items()}
        predicted = self.law.predict(params, self.runs)
        if self.law.delta is None:
            return predicted - self.loss_N
        return np.log(predicted) - np.log(self.loss_N)


@dataclass(frozen=True)
class Solver:
    """How a law is fitted.

    Attributes:
      solve: (problem, exponents (S, J) to start from, weights (S, N) or (1, N)) to ``Minima``.
      starts: random starts of one fit unless asked otherwise.
      resample_starts: random starts of a resample, beside the whole fit's optimum and one near it.
    """

    solve: Callable[[Problem, FloatArray, FloatArray], Minima]
    starts: int
    resample_starts: int


def jacobian(residuals: Callable[[FloatArray], FloatArray], theta_P: FloatArray) -> FloatArray:
    """∂residuals/∂θ (P, N) by central differences of fourth order, in one call."""
    step = 1e-3 * np.eye(len(theta_P))
    around = theta_P + np.concatenate([step, -step, 2 * step, -2 * step])
    up, down, up2, down2 = np.split(residuals(around), 4)
    return (8.0 * (up - down) - (up2 - down2)) / 12e-3
