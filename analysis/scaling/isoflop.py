"""Iso-FLOP parabolas: loss against log N at one budget and one r, and the optimum of each.

The approach-2 estimate of compute-optimal size (Hoffmann et al., arXiv:2203.15556, section 3.2).
It uses nothing but the runs of one (budget, r) cell, so it checks the fitted law; the optimum *of
the law* is another definition and lives in `allocation`.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.errors import InputError

MIN_BUDGETS = 3


@dataclass(frozen=True)
class IsoFlopCurve:
    """The runs of one (budget, r) cell, and the parabola c₀ + c₁x + c₂x² in x = ln N − centre.

    N counts unique non-embedding parameters. `refused` says why the curve has no vertex; then
    `n_opt`, `tokens_opt` and `loss_opt` are nan. `log_n_opt_se` is the delta-method standard error
    of ln N*, nan for three runs (no degree of freedom is left).
    """

    budget: float
    r: float
    n_params: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    centre: float
    coefficients: tuple[float, float, float]
    refused: str | None
    n_opt: float
    tokens_opt: float
    loss_opt: float
    log_n_opt_se: float

    def predict(self, n_params):
        """The parabola's loss (nats) at these sizes; nan where there is no parabola."""
        return np.polynomial.polynomial.polyval(
            np.log(n_params) - self.centre, np.array(self.coefficients)
        )


@dataclass(frozen=True)
class PowerLaw:
    """value = exp(log_scale) · (C / centre)^exponent, by least squares on the logs of n budgets."""

    exponent: float
    se: float
    ci95: tuple[float, float]
    log_scale: float
    centre: float
    n: int

    def predict(self, budget):
        return np.exp(self.log_scale) * (np.asarray(budget) / self.centre) ** self.exponent


@dataclass(frozen=True)
class Exponents:
    """N*(C) ∝ C^a and D*(C) ∝ C^b of one r from the vertices, or the reason there are none."""

    r: float
    n_params: PowerLaw | None
    tokens: PowerLaw | None
    refused: str | None

    @property
    def total(self) -> float | None:
        """a + b; 1 only where FLOPs per token are proportional to N."""
        if self.n_params is None or self.tokens is None:
            return None
        return self.n_params.exponent + self.tokens.exponent


def isoflop_curves(runs: pd.DataFrame) -> list[IsoFlopCurve]:
    """One curve per (r, budget) cell, ordered by r, then budget.

    runs: columns `budget, r, n_once, n_rec, n_inject, tokens, loss`.
    """
    return [
        _curve(float(budget), float(r), cell)
        for (r, budget), cell in runs.groupby(["r", "budget"], sort=True)
    ]


def exponents(curves: list[IsoFlopCurve]) -> list[Exponents]:
    """The growth of the vertices with compute, per r."""
    result = []
    for r in sorted({curve.r for curve in curves}):
        kept = [curve for curve in curves if curve.r == r and curve.refused is None]
        if len(kept) < MIN_BUDGETS:
            reason = (
                f"r = {r:g}: {len(kept)} budgets with a usable vertex; an exponent needs at least "
                f"{MIN_BUDGETS}"
            )
            result.append(Exponents(r, None, None, reason))
            continue
        budgets = np.array([curve.budget for curve in kept])
        result.append(
            Exponents(
                r=r,
                n_params=fit_power_law(budgets, np.array([curve.n_opt for curve in kept])),
                tokens=fit_power_law(budgets, np.array([curve.tokens_opt for curve in kept])),
                refused=None,
            )
        )
    return result


def fit_power_law(budgets: np.ndarray, values: np.ndarray) -> PowerLaw:
    """Least squares of log value on log C, with the slope's standard error and t interval."""
    n = len(np.unique(budgets))
    if n < MIN_BUDGETS:
        raise InputError(f"{n} budgets; an exponent needs at least {MIN_BUDGETS}")
    log_c = np.log(budgets)
    centre = log_c.mean()
    fit = stats.linregress(log_c - centre, np.log(values))
    half_width = stats.t.ppf(0.975, len(budgets) - 2) * fit.stderr
    return PowerLaw(
        exponent=float(fit.slope),
        se=float(fit.stderr),
        ci95=(float(fit.slope - half_width), float(fit.slope + half_width)),
        log_scale=float(fit.intercept),
        centre=float(np.exp(centre)),
        n=len(budgets),
    )


def _curve(budget: float, r: float, cell: pd.DataFrame) -> IsoFlopCurve:
    # Float before the sum: int32 columns of a Parquet or Feather file would wrap.
    n_params = cell[["n_once", "n_rec", "n_inject"]].to_numpy(np.float64).sum(axis=1)
    order = np.argsort(n_params)
    n_params = n_params[order]
    tokens = cell["tokens"].to_numpy(np.float64)[order]
    loss = cell["loss"].to_numpy(np.float64)[order]
    log_n = np.log(n_params)
    centre = float(log_n.mean())
    n_sizes = len(np.unique(n_params))
    nan = float("nan")

    def curve(coefficients=(nan, nan, nan), refused=None, optimum=(nan, nan, nan, nan)):
        return IsoFlopCurve(
            budget, r, n_params, tokens, loss, centre, coefficients, refused, *optimum
        )

    if n_sizes < 3:
        return curve(refused=f"{n_sizes} model sizes; a parabola needs at least 3")
    x = log_n - centre
    c0, c1, c2 = (float(c) for c in np.polynomial.polynomial.polyfit(x, loss, 2))
    coefficients = (c0, c1, c2)
    if c2 <= 0:
        return curve(coefficients, "the parabola opens downwards: no minimum")
    vertex = -c1 / (2 * c2)
    if not x[0] <= vertex <= x[-1]:
        side, end = ("below the smallest", 0) if vertex < x[0] else ("above the largest", -1)
        reason = (
            f"the vertex, N = {np.exp(vertex + centre):.3g}, lies {side} model, "
            f"N = {n_params[end]:.3g}"
        )
        return curve(coefficients, reason)
    return curve(
        coefficients,
        optimum=(
            float(np.exp(vertex + centre)),
            _tokens_at(vertex, x, n_params, tokens),
            c0 - c1**2 / (4 * c2),
            _vertex_se(x, loss, coefficients),
        ),
    )


def _tokens_at(vertex: float, x: np.ndarray, n_params: np.ndarray, tokens: np.ndarray) -> float:
    """D at the vertex: at a fixed budget log D is a smooth, almost straight function of log N."""
    sizes, first = np.unique(n_params, return_index=True)
    degree = min(3, len(sizes) - 1)
    coefficients = np.polynomial.polynomial.polyfit(x[first], np.log(tokens[first]), degree)
    return float(np.exp(np.polynomial.polynomial.polyval(vertex, coefficients)))


def _vertex_se(x: np.ndarray, loss: np.ndarray, coefficients: tuple[float, float, float]) -> float:
    if len(x) < 4:
        return float("nan")
    _, covariance = np.polyfit(x, loss, 2, cov=True)  # of c₂, c₁, c₀
    _, c1, c2 = coefficients
    gradient = np.array([c1 / (2 * c2**2), -1 / (2 * c2), 0.0])
    return float(np.sqrt(gradient @ covariance @ gradient))
