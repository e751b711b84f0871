"""A scaling law as data: its parameters, their box, and the terms that they weigh.

Solvers, intervals, tables and files read this and nothing of a particular law. All losses are in
nats, all counts in parameters and tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis.laws.counting import FloatArray

if TYPE_CHECKING:
    from analysis.laws.problem import Solver

#: Width of the Huber loss on log L in arXiv:2203.15556 and arXiv:2604.21106.
DELTA = 1e-3

Values = Mapping[str, Any]  # by parameter: a number, or an array of one per fit that broadcasts


@dataclass(frozen=True)
class Exponent:
    """A parameter the loss is not linear in.

    Attributes:
      low, high: the box it is searched in.
      acts_on: what must vary among the runs to hold it: r (two values), N or D (three).
      coefficient: the coefficient of its term; the two are hard to tell apart far from the data.
    """

    symbol: str
    low: float
    high: float
    acts_on: Literal["r", "N", "D"] | None = None
    coefficient: str | None = None


@dataclass(frozen=True)
class Coefficient:
    """The weight of one term: positive and searched as its natural log, or signed."""

    symbol: str
    log_low: float = -40.0
    log_high: float = 40.0
    signed: bool = False


@dataclass(frozen=True)
class Runs:
    """What a law sees of runs: matrix counts, recurrences, training tokens; they broadcast."""

    n_once: FloatArray
    n_rec: FloatArray
    r: FloatArray
    tokens: FloatArray

    @staticmethod
    def of(counted: pd.DataFrame) -> "Runs":
        """The columns of a table in which the injection is counted (see ``book_injection``)."""
        return Runs.from_counts(*(counted[c] for c in ("n_once", "n_rec", "r", "tokens")))

    @staticmethod
    def from_counts(n_once: ArrayLike, n_rec: ArrayLike, r: ArrayLike, tokens: ArrayLike) -> "Runs":
        """Counts of any type; integers would overflow in products and powers."""
        return Runs(*(np.asarray(x, np.float64) for x in (n_once, n_rec, r, tokens)))

    def n_effective(self, phi: Any) -> FloatArray:
        """N_once + r^φ·N_rec: at φ = 0 every parameter counts once."""
        return np.asarray(self.n_once + self.r**phi * self.n_rec)


def total(_: Values, terms: Sequence[Any]) -> Any:
    """The loss as the sum of its terms."""
    return sum(terms[1:], start=terms[0])


@dataclass(frozen=True)
class Law:
    """L = Σ coefficient·column(exponents; run), or another function of these terms.

    Attributes:
      name: what ``--law=`` calls it.
      formula: for headings, with the symbols of the parameters.
      columns: one array for each coefficient, from the exponents' values and the runs.
      solver: the one that fits it (``least_squares.SOLVER`` fits every law).
      combine: the loss from the weighed columns.
      delta: width of the Huber loss on log L; None fits L itself by least squares.
      interval: what its 95 % intervals come from, redrawn or left-out blocks of runs.
    """

    name: str
    formula: str
    exponents: Mapping[str, Exponent]
    coefficients: Mapping[str, Coefficient]
    columns: Callable[[Values, Runs], Sequence[Any]]
    solver: "Solver"
    combine: Callable[[Values, Sequence[Any]], Any] = total
    delta: float | None = DELTA
    interval: Literal["bootstrap", "jackknife"] = "bootstrap"

    @property
    def title(self) -> str:
        return f"{self.name} law"

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in the order of tables: exponents, then coefficients."""
        return (*self.exponents, *self.coefficients)

    @property
    def symbols(self) -> dict[str, str]:
        declared: Mapping[str, Exponent | Coefficient] = {**self.exponents, **self.coefficients}
        return {name: parameter.symbol for name, parameter in declared.items()}

    @property
    def has_phi(self) -> bool:
        """Whether it says what a recurrence is worth."""
        return "phi" in self.exponents

    def predict(self, params: Values, runs: Runs) -> FloatArray:
        """Loss in nats; parameters and runs broadcast."""
        columns = self.columns(params, runs)
        terms = [params[n] * column for n, column in zip(self.coefficients, columns, strict=True)]
        return np.asarray(self.combine(params, terms) + np.zeros_like(runs.tokens))

    # --- θ, what solvers move: (log) coefficients, then exponents ---------------------------------

    @property
    def theta_names(self) -> tuple[str, ...]:
        logs = (n if c.signed else f"log_{n}" for n, c in self.coefficients.items())
        return (*logs, *self.exponents)

    def params(self, theta: FloatArray) -> dict[str, Any]:
        """Values by name from θ (P,) or (S, P): floats, or arrays (S,)."""
        coefficients = {
            name: theta[..., k] if c.signed else np.exp(theta[..., k])
            for k, (name, c) in enumerate(self.coefficients.items())
        }
        first = len(coefficients)
        found = {name: theta[..., first + j] for j, name in enumerate(self.exponents)}
        found |= coefficients
        return {n: float(v) for n, v in found.items()} if theta.ndim == 1 else found

    def is_named(self, name: str, theta_names: Sequence[str]) -> bool:
        """Whether a parameter is among some names of θ."""
        return name in theta_names or f"log_{name}" in theta_names


@dataclass(frozen=True)
class FittedLaw:
    """A law with values for its parameters."""

    law: Law
    params: Values

    def predict(self, runs: Runs) -> FloatArray:
        """Loss in nats; parameters and runs broadcast."""
        return self.law.predict(self.params, runs)

    @property
    def phi(self) -> Any:
        """φ, or 0 for a law that counts every parameter once."""
        return self.params.get("phi", 0.0)
