"""Compute-optimal allocation: the minimum of the fitted law under the exact FLOPs function.

At a budget C and one r, a width d fixes everything: N_eff(d), and D = C / FLOPs-per-token(d). The
optimum is the width of least loss. This is a definition of N*(C) and D*(C) of its own, not the
vertices of `isoflop`; nothing here reads a parabola.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import elementwise

from analysis.errors import NotIdentifiedError
from analysis.estimate import Estimate, central95, estimate
from analysis.laws.counting import FloatArray, Injection
from analysis.laws.law import FittedLaw, Runs
from analysis.tables.flops import Architecture, architectures
from analysis.tables.runs import RunTable

# The search reaches this factor beyond the widths of the runs; further out the law says nothing.
WIDTH_REACH = 1e4
# A minimum this near (in log width) to an end of the search is none: the loss falls beyond.
EDGE = 0.01
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
    `gaps` and `sizes` compare with r = 1 and are empty when no run has it; `sizes` need a φ.
    """

    injection: Injection
    optima: list[Optima]
    at_budgets: list[Optima]
    growth: list[Growth]
    gaps: list[FrontierGap]
    gaps_at_budgets: list[FrontierGap]
    sizes: list[EquivalentSize]


def allocate(table: RunTable, fitted: FittedLaw, resamples: pd.DataFrame | None) -> Allocation:
    """Allocation, frontiers and equivalent sizes of a fitted law.

    resamples: a column a parameter, one accepted bootstrap resample a row; None leaves the
    intervals out. Raises InputError when the FLOPs function of width is not known
    exactly, NotIdentifiedError when the law has no optimum.
    """
    designs = architectures(table.runs)
    budgets = np.unique(table.runs["budget"].to_numpy(np.float64))
    grid = np.geomspace(budgets[0], budgets[-1], GRID) if len(budgets) > 1 else budgets
    on_grid = _frontiers(fitted, designs, table.injection, grid, resamples)
    at_budgets = _frontiers(fitted, designs, table.injection, budgets, resamples)
    growths = [growth(*pair) for pair in on_grid.values()] if len(budgets) > 1 else []
    looped = [r for r in designs if r != 1] if 1 in designs else []
    drawn = None if resamples is None else resampled(fitted, resamples)
    sized = looped if fitted.law.has_phi else []
    return Allocation(
        injection=table.injection,
        optima=[optima for optima, _ in on_grid.values()],
        at_budgets=[optima for optima, _ in at_budgets.values()],
        growth=growths,
        gaps=[_gap(on_grid[r], on_grid[1]) for r in looped],
        gaps_at_budgets=[_gap(at_budgets[r], at_budgets[1]) for r in looped],
        sizes=[
            equivalent_size(fitted, designs[r], designs[1], table.injection, drawn) for r in sized
        ],
    )


def resampled(fitted: FittedLaw, resamples: pd.DataFrame) -> FittedLaw:
    """The same law with S values (S, 1) for every parameter."""
    columns = {name: resamples[name].to_numpy(np.float64)[:, None] for name in fitted.params}
    return FittedLaw(fitted.law, columns)


def _frontiers(
    fitted: FittedLaw,
    designs: Mapping[float, Architecture],
    injection: Injection,
    budgets: FloatArray,
    resamples: pd.DataFrame | None,
) -> dict[float, tuple[Optima, Optima | None]]:
    drawn = None if resamples is None else resampled(fitted, resamples)
    return {
        r: (
            optimal_allocation(fitted, design, injection, budgets),
            None if drawn is None else least_loss(drawn, design, injection, budgets),
        )
        for r, design in designs.items()
    }


def _gap(mine: tuple[Optima, Optima | None], unlooped: tuple[Optima, Optima | None]) -> FrontierGap:
    return frontier_gap(mine[0], unlooped[0], mine[1], unlooped[1])


def optimal_allocation(
    fitted: FittedLaw, architecture: Architecture, injection: Injection, budgets: FloatArray
) -> Optima:
    """The optimum of one fitted law at every budget.

    Raises NotIdentifiedError when no width is best, as where a term of the law has vanished.
    """
    optima = least_loss(fitted, architecture, injection, np.asarray(budgets, np.float64))
    if np.isnan(optima.loss).any():
        values = ", ".join(f"{n} = {v:.3g}" for n, v in fitted.params.items())
        raise NotIdentifiedError(
            f"r = {architecture.r:g}: the fitted law ({values}) has no compute-optimal width "
            f"within a factor {WIDTH_REACH:g} of the runs' widths"
        )
    return optima


def least_loss(
    fitted: FittedLaw, architecture: Architecture, injection: Injection, budgets: FloatArray
) -> Optima:
    """The optimum at every budget (C,); (S, C) for a law with S values (S, 1) per parameter."""
    names = list(fitted.params)
    n_once, n_rec = architecture.counted(injection)
    cost = architecture.flops_per_token

    def loss(log_d, budgets, *values):
        d = np.exp(log_d)
        runs = Runs(n_once(d), n_rec(d), np.full_like(d, architecture.r), budgets / cost(d))
        return fitted.law.predict(dict(zip(names, values, strict=True)), runs)

    # The search drops the elements it has finished, so everything that varies is an argument.
    varying = np.broadcast_arrays(budgets, *(np.asarray(fitted.params[n]) for n in names))
    start = np.full(varying[0].shape, np.log(architecture.d_min * architecture.d_max) / 2)
    low = np.full_like(start, np.log(architecture.d_min / WIDTH_REACH))
    high = np.full_like(start, np.log(architecture.d_max * WIDTH_REACH))
    with np.errstate(invalid="ignore"):
        around = elementwise.bracket_minimum(loss, start, xmin=low, xmax=high, args=varying)
        found = elementwise.find_minimum(loss, around.bracket, args=varying)
    inner = around.success & found.success & (found.x > low + EDGE) & (found.x < high - EDGE)
    d = np.exp(np.where(inner, found.x, np.nan))
    return Optima(
        r=architecture.r,
        budgets=budgets,
        d_model=d,
        n_params=architecture.n_params(d),
        n_effective=architecture.n_effective(fitted.phi, injection)(d),
        tokens=budgets / cost(d),
        loss=np.where(inner, found.f_x, np.nan),
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
    fitted: FittedLaw,
    architecture: Architecture,
    reference: Architecture,
    injection: Injection,
    drawn: FittedLaw | None,
) -> EquivalentSize:
    """Compare r with r = 1 at the same width, the middle of the runs' widths on a log scale."""
    d = float(np.sqrt(architecture.d_min * architecture.d_max))
    whole = reference.n_effective(fitted.phi, injection)(d)

    def ratio(phi):
        return architecture.n_effective(phi, injection)(d) / whole

    return EquivalentSize(
        r=architecture.r,
        d_model=d,
        unique=float(architecture.n_params(d) / reference.n_params(d)),
        effective=estimate(
            float(ratio(fitted.phi)), None if drawn is None else ratio(drawn.phi[:, 0])
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
