"""Compute-optimal allocation: the minimum of the fitted law under the exact FLOPs function.

At a budget C and one r, a width d fixes everything: N_eff(d), and D = C / FLOPs-per-token(d). The
optimum is where a little more width gains as much as the tokens it costs. This is a definition of
N*(C) and D*(C) of its own, not the vertices of `isoflop`; nothing here reads a parabola.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import elementwise

from analysis.errors import NotIdentifiedError
from analysis.estimate import Estimate, central95, estimate
from analysis.laws.laws import FloatArray, Injection, JointLaw
from analysis.tables.flops import Architecture, WidthPolynomial, architectures
from analysis.tables.runs import RunTable

# The search reaches this factor beyond the widths of the runs; further out the law says nothing.
WIDTH_REACH = 1e4
# Points of a drawn frontier.
GRID = 41


@dataclass(frozen=True)
class Optima:
    """The compute-optimal model of one r at each budget.

    budgets: (C,) FLOPs. The others are (C,), or (S, C) for S resampled laws: width, unique
    non-embedding parameters, effective parameters, training tokens, loss in nats. nan where the
    law has no optimum. `extrapolated` marks widths that no run of this r comes near.
    """

    r: float
    budgets: FloatArray
    d_model: FloatArray
    n_params: FloatArray
    n_effective: FloatArray
    tokens: FloatArray
    loss: FloatArray
    extrapolated: np.ndarray


@dataclass(frozen=True)
class Growth:
    """Exponents of N*(C) and D*(C) of one r under the fitted law, and their sum."""

    r: float
    n_params: Estimate
    tokens: Estimate
    total: float


@dataclass(frozen=True)
class FrontierGap:
    """L*_r(C) − L*_1(C) in nats: what looping costs (or gains, below 0) at equal compute.

    budgets, gap: (C,); ci95: the two ends, (C,) each, or None without resamples.
    """

    r: float
    budgets: FloatArray
    gap: FloatArray
    ci95: tuple[FloatArray, FloatArray] | None


@dataclass(frozen=True)
class EquivalentSize:
    """What a model with r recurrences is worth beside the r = 1 model of the same width.

    unique: its unique parameters over those of the r = 1 model; effective: the same with N_eff.
    """

    r: float
    d_model: float
    unique: float
    effective: Estimate


@dataclass(frozen=True)
class Allocation:
    """Everything the fitted law says about spending compute, per r in ascending order.

    `optima` over a fine grid of budgets within the study's range; `at_budgets` at the study's own.
    `gaps` and `sizes` compare with r = 1 and are empty when no run has it.
    """

    injection: Injection
    optima: list[Optima]
    at_budgets: list[Optima]
    growth: list[Growth]
    gaps: list[FrontierGap]
    gaps_at_budgets: list[FrontierGap]
    sizes: list[EquivalentSize]


def allocate(table: RunTable, law: JointLaw, resamples: pd.DataFrame | None) -> Allocation:
    """Allocation, frontiers and equivalent sizes of a fitted law.

    resamples: columns phi, alpha, beta, E, A, B, one accepted bootstrap resample a row; None
    leaves the intervals out. Raises InputError when the FLOPs function of width is not known
    exactly, NotIdentifiedError when the law has no optimum.
    """
    designs = architectures(table.runs)
    budgets = np.unique(table.runs["budget"].to_numpy(np.float64))
    grid = np.geomspace(budgets[0], budgets[-1], GRID) if len(budgets) > 1 else budgets
    on_grid = _frontiers(law, designs, table.injection, grid, resamples)
    at_budgets = _frontiers(law, designs, table.injection, budgets, resamples)
    growths = [growth(*pair) for pair in on_grid.values()] if len(budgets) > 1 else []
    looped = [r for r in designs if r != 1] if 1 in designs else []
    phi = None if resamples is None else resamples["phi"].to_numpy(np.float64)
    return Allocation(
        injection=table.injection,
        optima=[optima for optima, _ in on_grid.values()],
        at_budgets=[optima for optima, _ in at_budgets.values()],
        growth=growths,
        gaps=[_gap(on_grid[r], on_grid[1]) for r in looped],
        gaps_at_budgets=[_gap(at_budgets[r], at_budgets[1]) for r in looped],
        sizes=[equivalent_size(law, designs[r], designs[1], table.injection, phi) for r in looped],
    )


def _frontiers(
    law: JointLaw,
    designs: Mapping[float, Architecture],
    injection: Injection,
    budgets: FloatArray,
    resamples: pd.DataFrame | None,
) -> dict[float, tuple[Optima, Optima | None]]:
    return {
        r: (
            optimal_allocation(law, design, injection, budgets),
            None
            if resamples is None
            else resampled_allocation(resamples, design, injection, budgets),
        )
        for r, design in designs.items()
    }


def _gap(mine: tuple[Optima, Optima | None], unlooped: tuple[Optima, Optima | None]) -> FrontierGap:
    return frontier_gap(mine[0], unlooped[0], mine[1], unlooped[1])


def optimal_allocation(
    law: JointLaw, architecture: Architecture, injection: Injection, budgets: FloatArray
) -> Optima:
    """The optimum of one fitted law at every budget.

    Raises NotIdentifiedError when a term of the law has vanished, so that no width is best.
    """
    optima = _minimise(law.params(), architecture, injection, np.asarray(budgets, np.float64))
    if np.isnan(optima.loss).any():
        raise NotIdentifiedError(
            f"r = {architecture.r:g}: the fitted law (A = {law.A:.3g}, alpha = {law.alpha:.3g}, "
            f"B = {law.B:.3g}, beta = {law.beta:.3g}) has no compute-optimal width within a factor "
            f"{WIDTH_REACH:g} of the runs' widths"
        )
    return optima


def resampled_allocation(
    resamples: pd.DataFrame, architecture: Architecture, injection: Injection, budgets: FloatArray
) -> Optima:
    """The optima of S laws at once, one a row (phi, alpha, beta, E, A, B); arrays (S, C)."""
    columns = {
        name: resamples[name].to_numpy(np.float64)[:, None]
        for name in ("phi", "alpha", "beta", "E", "A", "B")
    }
    return _minimise(columns, architecture, injection, np.asarray(budgets, np.float64))


def _minimise(
    params: Mapping[str, float | FloatArray],
    architecture: Architecture,
    injection: Injection,
    budgets: FloatArray,
) -> Optima:
    n_effective = architecture.n_effective(params["phi"], injection)
    cost = architecture.flops_per_token
    alpha, beta, E, A, B = (params[name] for name in ("alpha", "beta", "E", "A", "B"))
    with np.errstate(divide="ignore"):
        log_gain, log_price = np.log(alpha * np.asarray(A)), np.log(beta * np.asarray(B))

    def slope(log_d, log_gain, log_price, alpha, beta, linear, quadratic, log_budget):
        """Log ratio of what width gains to what its tokens cost; falling, 0 at the optimum.

        dL/dlog d = −αA·N^−α·ε_N + βB·D^−β·ε_f with ε the elasticities of N_eff and of the cost.
        """
        d = np.exp(log_d)
        n = WidthPolynomial(linear, quadratic)
        gain = log_gain - alpha * np.log(n(d)) + np.log(n.elasticity(d))
        log_tokens = log_budget - np.log(cost(d))
        return gain - (log_price - beta * log_tokens + np.log(cost.elasticity(d)))

    # The root finder drops the elements it has finished, so everything that varies is an argument.
    varying = np.broadcast_arrays(
        log_gain, log_price, alpha, beta, n_effective.linear, n_effective.quadratic, np.log(budgets)
    )
    low = np.full(varying[0].shape, np.log(architecture.d_min / WIDTH_REACH))
    high = np.full(varying[0].shape, np.log(architecture.d_max * WIDTH_REACH))
    with np.errstate(invalid="ignore"):
        found = elementwise.find_root(slope, (low, high), args=varying)
        d = np.where(found.success, np.exp(found.x), np.nan)
    tokens = budgets / cost(d)
    n_eff = n_effective(d)
    return Optima(
        r=architecture.r,
        budgets=budgets,
        d_model=d,
        n_params=architecture.n_params(d),
        n_effective=n_eff,
        tokens=tokens,
        loss=E + A * n_eff**-alpha + B * tokens**-beta,
        extrapolated=(d < architecture.d_min) | (d > architecture.d_max),
    )


def frontier_gap(
    optima: Optima, reference: Optima, resampled: Optima | None, resampled_reference: Optima | None
) -> FrontierGap:
    """The gap of two frontiers over the same budgets, its band from the same resamples of both."""
    interval = None
    if resampled is not None and resampled_reference is not None:
        low, high = central95(resampled.loss - resampled_reference.loss)
        interval = (low, high)
    return FrontierGap(optima.r, optima.budgets, optima.loss - reference.loss, interval)


def equivalent_size(
    law: JointLaw,
    architecture: Architecture,
    reference: Architecture,
    injection: Injection,
    phi_resamples: FloatArray | None,
) -> EquivalentSize:
    """Compare r with r = 1 at the same width, the middle of the runs' widths on a log scale."""
    d = float(np.sqrt(architecture.d_min * architecture.d_max))
    whole = reference.n_effective(law.phi, injection)(d)

    def ratio(phi):
        return architecture.n_effective(phi, injection)(d) / whole

    return EquivalentSize(
        r=architecture.r,
        d_model=d,
        unique=float(architecture.n_params(d) / reference.n_params(d)),
        effective=estimate(
            float(ratio(law.phi)), None if phi_resamples is None else ratio(phi_resamples)
        ),
    )


def growth(optima: Optima, resampled: Optima | None) -> Growth:
    """N* ∝ C^a and D* ∝ C^b over the budgets given: slopes on log-log axes, resample by resample.

    The FLOPs function has a term linear in width, so the slope drifts slowly with C; this is its
    mean over the range, and a + b is above 1.
    """

    def slope(values: FloatArray) -> FloatArray:
        x = np.log(optima.budgets) - np.log(optima.budgets).mean()
        return np.asarray(np.log(values) @ x / (x @ x))

    def of(name: str) -> Estimate:
        draws = None if resampled is None else slope(getattr(resampled, name))
        return estimate(float(slope(getattr(optima, name))), draws)

    a, b = of("n_params"), of("tokens")
    return Growth(optima.r, a, b, a.value + b.value)
