"""Compute-optimal allocation: the minimum of the fitted law under the exact FLOPs function.

At a budget C and one r, a width d fixes everything: N_eff(d), and D = C / FLOPs-per-token(d). The
optimum is the width of least loss. This is a definition of N*(C) and D*(C) of its own, not the
vertices of `isoflop`; nothing here reads a parabola.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import elementwise

from analysis.errors import NotIdentifiedError
from analysis.laws.counting import FloatArray, Injection
from analysis.laws.law import FittedLaw, Runs
from analysis.scaling.flops import Architecture, architectures
from analysis.tables.estimate import Draws, Estimate, estimate
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

    budgets: (C,) FLOPs. The others are (C,), or (S, C) for a law with S values per parameter:
    width, unique non-embedding parameters, effective parameters, training tokens, loss in nats. nan
    where the law has no optimum. `extrapolated` marks widths that no run of this r comes near.
    """

    r: float
    budgets: FloatArray
    d_model: FloatArray
    n_params: FloatArray
    n_effective: FloatArray
    tokens: FloatArray
    loss: FloatArray
    extrapolated: np.ndarray

    @property
    def first(self) -> "Optima":
        """Those of the first of S laws."""
        rows = {name: value[0] for name, value in vars(self).items() if np.ndim(value) == 2}
        return replace(self, **rows)


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


def allocate(
    table: RunTable, fitted: FittedLaw, draws: Draws | None, budgets: FloatArray | None = None
) -> Allocation:
    """Allocation, frontiers and equivalent sizes of a fitted law.

    draws: the law's parameters over changed runs; None leaves the intervals out. budgets: FLOPs;
    the study's own when not given. Raises InputError when the FLOPs function of width is not known
    exactly, NotIdentifiedError when the law has no optimum.
    """
    designs = architectures(table.runs)
    if budgets is None:
        budgets = table.runs["budget"].to_numpy(np.float64)
    budgets = np.unique(budgets)
    grid = np.geomspace(budgets[0], budgets[-1], GRID) if len(budgets) > 1 else budgets
    law, injection = with_draws(fitted, draws), table.injection
    on_grid, at_budgets = (
        {r: optimal_allocation(law, each, injection, at) for r, each in designs.items()}
        for at in (grid, budgets)
    )
    looped = [r for r in designs if r != 1] if 1 in designs else []
    sized = looped if fitted.law.has_phi else []
    return Allocation(
        injection=injection,
        optima=[optima.first for optima in on_grid.values()],
        at_budgets=[optima.first for optima in at_budgets.values()],
        growth=[growth(each, draws) for each in on_grid.values()] if len(budgets) > 1 else [],
        gaps=[frontier_gap(on_grid[r], on_grid[1], draws) for r in looped],
        gaps_at_budgets=[frontier_gap(at_budgets[r], at_budgets[1], draws) for r in looped],
        sizes=[equivalent_size(law, designs[r], designs[1], injection, draws) for r in sized],
    )


def with_draws(fitted: FittedLaw, draws: Draws | None) -> FittedLaw:
    """The law with its parameters and then those of S draws, (1 + S, 1) each."""
    table = pd.DataFrame([fitted.params])
    if draws is not None:
        table = pd.concat([table, draws.params[list(fitted.params)]])
    return FittedLaw(fitted.law, {n: table[n].to_numpy(np.float64)[:, None] for n in table})


def optimal_allocation(
    fitted: FittedLaw, architecture: Architecture, injection: Injection, budgets: FloatArray
) -> Optima:
    """The optimum of a law, or of each of S laws, at every budget.

    Raises NotIdentifiedError when no width is best under the first, as where a term of it has
    vanished.
    """
    optima = least_loss(fitted, architecture, injection, np.asarray(budgets, np.float64))
    if np.isnan(np.atleast_2d(optima.loss)[0]).any():
        values = ", ".join(f"{n} = {np.ravel(v)[0]:.3g}" for n, v in fitted.params.items())
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


def frontier_gap(mine: Optima, reference: Optima, draws: Draws | None) -> FrontierGap:
    """The gap of two frontiers over the same budgets, its band from the same draws of both."""
    gap = mine.loss - reference.loss
    ends = None if draws is None else draws.ends(gap[0], gap[1:])
    return FrontierGap(mine.r, mine.budgets, gap[0], ends)


def equivalent_size(
    law: FittedLaw,
    architecture: Architecture,
    reference: Architecture,
    injection: Injection,
    draws: Draws | None,
) -> EquivalentSize:
    """Compare r with r = 1 at the same width, the middle of the runs' widths on a log scale."""
    d = float(np.sqrt(architecture.d_min * architecture.d_max))
    size = architecture.n_effective(law.phi, injection)(d)
    return EquivalentSize(
        r=architecture.r,
        d_model=d,
        unique=float(architecture.n_params(d) / reference.n_params(d)),
        effective=estimate((size / reference.n_effective(0.0, injection)(d)).ravel(), draws),
    )


def growth(optima: Optima, draws: Draws | None) -> Growth:
    """N* ∝ C^a and D* ∝ C^b over the budgets given: slopes on log-log axes, draw by draw.

    The FLOPs function has a term linear in width, so the slope drifts slowly with C; this is its
    mean over the range, and a + b is above 1.
    """
    x = np.log(optima.budgets) - np.log(optima.budgets).mean()
    slope = lambda values: estimate(np.log(values) @ x / (x @ x), draws)
    a, b = slope(optima.n_params), slope(optima.tokens)
    return Growth(optima.r, a, b, a.value + b.value)
