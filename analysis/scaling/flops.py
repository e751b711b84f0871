"""Matrices and training FLOPs per token as exact functions of width, inferred from the runs.

Within one architecture (one number of recurrences, one depth, one sequence length and vocabulary)
every matrix count and the FLOPs per token are polynomials in the width d without a constant term:
the matrices give d², attention over a fixed sequence and the unembedding give d. The coefficients
are solved for and then checked against every run: no architecture is assumed, and a table that
mixes two architectures under one r is refused instead of being averaged.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis.errors import InputError
from analysis.laws.counting import FloatArray, Injection

# A number, or one per bootstrap resample.
Coefficient = float | FloatArray

# Counts are integers below 2^53; the only error left is that of float64 arithmetic.
EXACT = 1e-9
MIN_WIDTHS = 3


@dataclass(frozen=True)
class WidthPolynomial:
    """`linear`·d + `quadratic`·d², a count or a cost as a function of the width d."""

    linear: Coefficient
    quadratic: Coefficient

    def __call__(self, d_model: ArrayLike) -> FloatArray:
        d = np.asarray(d_model, dtype=np.float64)
        return self.linear * d + self.quadratic * d**2

    def __add__(self, other: "WidthPolynomial") -> "WidthPolynomial":
        return WidthPolynomial(self.linear + other.linear, self.quadratic + other.quadratic)

    def scaled(self, factor: Coefficient) -> "WidthPolynomial":
        return WidthPolynomial(factor * self.linear, factor * self.quadratic)


@dataclass(frozen=True)
class Architecture:
    """One r at any width: matrix counts (parameters) and training FLOPs per token."""

    r: float
    n_once: WidthPolynomial
    n_rec: WidthPolynomial
    n_inject: WidthPolynomial
    flops_per_token: WidthPolynomial
    d_min: float
    d_max: float

    @property
    def n_params(self) -> WidthPolynomial:
        """Unique non-embedding parameters, the injection included."""
        return self.n_once + self.n_rec + self.n_inject

    def counted(self, injection: Injection) -> tuple[WidthPolynomial, WidthPolynomial]:
        """N_once and N_rec with the injection counted."""
        once = self.n_once + self.n_inject if injection == "once" else self.n_once
        rec = self.n_rec + self.n_inject if injection == "recurrent" else self.n_rec
        return once, rec

    def n_effective(self, phi: Coefficient, injection: Injection) -> WidthPolynomial:
        """N_once + r^φ·N_rec with the injection counted; φ may be an array of resamples (S, 1)."""
        once, rec = self.counted(injection)
        return once + rec.scaled(self.r**phi)


def architecture(runs: pd.DataFrame, r: float) -> Architecture:
    """The architecture behind the runs with this r.

    runs: columns `r, d_model, n_once, n_rec, n_inject, flops_per_token`.
    Raises InputError when the table has no width column, fewer than three widths, or columns
    that no single architecture explains exactly.
    """
    if "d_model" not in runs.columns or not pd.api.types.is_numeric_dtype(runs["d_model"]):
        raise InputError(
            "the allocation needs a column d_model with a number in every row: "
            "FLOPs per token are a function of width"
        )
    mine = runs[runs["r"] == r]
    d = mine["d_model"].to_numpy(np.float64)
    n_widths = len(np.unique(d))
    if n_widths < MIN_WIDTHS:
        raise InputError(
            f"r = {r:g}: {n_widths} distinct d_model; the FLOPs function of width needs at least "
            f"{MIN_WIDTHS} to be solved and checked"
        )
    columns = ("n_once", "n_rec", "n_inject", "flops_per_token")
    polynomials = {name: _solve(mine, name, d, r) for name in columns}
    return Architecture(r=r, d_min=float(d.min()), d_max=float(d.max()), **polynomials)


def architectures(runs: pd.DataFrame) -> dict[float, Architecture]:
    """`architecture` for every r in the table."""
    return {float(r): architecture(runs, float(r)) for r in sorted(runs["r"].unique())}


def _solve(mine: pd.DataFrame, name: str, d: np.ndarray, r: float) -> WidthPolynomial:
    values = mine[name].to_numpy(np.float64)
    if not values.any():
        return WidthPolynomial(0.0, 0.0)
    # Divided by d²: the two unknowns get columns of comparable size at every width.
    design = np.stack([1 / d, np.ones_like(d)], axis=1)
    (linear, quadratic), *_ = np.linalg.lstsq(design, values / d**2, rcond=None)
    # An exact zero would otherwise come back as rounding noise of either sign.
    linear = 0.0 if abs(linear) < EXACT * abs(quadratic) * d.max() else float(linear)
    polynomial = WidthPolynomial(linear, float(quadratic))
    off = np.abs(polynomial(d) - values) / values.max()
    worst = int(off.argmax())
    if off[worst] > EXACT:
        raise InputError(
            f"{name} of run {mine['run'].iloc[worst]} (r = {r:g}, d_model = {d[worst]:g}) is "
            f"{values[worst]:.12g}, but the runs with this r give {polynomial(d)[worst]:.12g} at "
            "this width: more than one architecture, sequence length or vocabulary under one r"
        )
    return polynomial
