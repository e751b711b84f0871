"""Δφ between two studies: what a change to the loop did to the worth of a recurrence.

Loss alone cannot tell whether a variant learns more per parameter or only saw more tokens for the
same FLOPs. Both studies are refitted on the (budget, r) cells they share, with the same r = 1 runs,
and resampled together, so that what is common to them cancels out of the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.errors import InputError, NotIdentifiedError
from analysis.scaling.allocation import with_draws
from analysis.scaling.attribution import LossShares, WidthShift, loss_shares, width_shifts
from analysis.scaling.bootstrap import (
    FEW_BLOCKS,
    RESAMPLES,
    blocks,
    draw_blocks,
    problem_of,
    refit,
)
from analysis.scaling.fit import FitResult, fit
from analysis.scaling.flops import architectures
from analysis.tables.estimate import Draws, Estimate, estimate
from analysis.tables.runs import Dropped, RunTable


@dataclass(frozen=True)
class Comparison:
    """Two refitted studies and their differences; `set_aside` lists runs used in neither fit."""

    baseline: FitResult
    variant: FitResult
    phi_baseline: Estimate
    phi_variant: Estimate
    delta_phi: Estimate
    budgets: tuple[float, ...]
    n_cells: int
    resamples: int
    n_accepted: int
    loss: list[LossShares]
    width: list[WidthShift]
    set_aside: list[Dropped]
    warnings: list[str]


def compare(
    baseline: RunTable,
    variant: RunTable,
    *,
    law: str = "joint",
    starts: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Refit both studies on what they share and bootstrap the difference by (budget, r) cells.

    The tables must be booked alike. The r = 1 runs are the baseline's (the variant's where the
    baseline has none).

    Raises:
        InputError: no shared budget, or no looped cell in both.
        NotIdentifiedError: the shared runs do not identify φ, or hardly any resample can be fitted.
    """
    if baseline.injection != variant.injection:
        raise InputError(
            f"the baseline books the injection as {baseline.injection!r}, the variant as "
            f"{variant.injection!r}; compare needs one booking"
        )
    ours, theirs, set_aside, warnings = shared_runs(baseline, variant)
    fits = [fit(table, law, starts=starts, seed=seed) for table in (ours, theirs)]
    if not fits[0].law.has_phi:
        raise InputError(f"law {law!r}: compare needs a law with φ")
    for name, result in zip(("baseline", "variant"), fits, strict=True):
        warnings += result.warnings(name)
    counts_RB, draws = _paired_draws((ours, theirs), fits, resamples, seed)
    accepted = draws[0].notna().all(axis=1) & draws[1].notna().all(axis=1)
    n_accepted = int(accepted.sum())
    if n_accepted < max(2, resamples // 2):
        raise NotIdentifiedError(
            f"compare: only {n_accepted} of {resamples} paired resamples can be fitted"
        )
    if n_accepted < resamples:
        warnings.append(f"{resamples - n_accepted} of {resamples} paired resamples left out")
    if counts_RB.shape[1] < FEW_BLOCKS:
        warnings.append(
            f"{counts_RB.shape[1]} (budget, r) cells to redraw are few: the intervals are likely "
            "too narrow"
        )
    draws = [table[accepted].reset_index(drop=True) for table in draws]
    loss: list[LossShares] = []
    width: list[WidthShift] = []
    try:
        designs = (architectures(ours.runs), architectures(theirs.runs))
    except InputError as reason:
        warnings.append(f"no widths and no shares of the loss: {reason}")
    else:
        laws = [with_draws(one.fitted, Draws(draw)) for one, draw in zip(fits, draws, strict=True)]
        weights = pd.DataFrame(counts_RB[accepted.to_numpy()], columns=_cells(ours))
        loss = loss_shares(ours, theirs, laws, weights)
        width = width_shifts(ours, designs, laws)
    phi = [np.r_[one.params["phi"], draw["phi"]] for one, draw in zip(fits, draws, strict=True)]
    return Comparison(
        baseline=fits[0],
        variant=fits[1],
        phi_baseline=estimate(phi[0]),
        phi_variant=estimate(phi[1]),
        delta_phi=estimate(phi[1] - phi[0]),
        budgets=tuple(float(b) for b in sorted(ours.runs["budget"].unique())),
        n_cells=counts_RB.shape[1],
        resamples=resamples,
        n_accepted=n_accepted,
        loss=loss,
        width=width,
        set_aside=set_aside,
        warnings=warnings,
    )


def shared_runs(
    baseline: RunTable, variant: RunTable
) -> tuple[RunTable, RunTable, list[Dropped], list[str]]:
    """Both tables cut to their shared cells with one set of r = 1 runs, and what was set aside."""
    ours, theirs = baseline.runs, variant.runs
    if not set(ours["budget"]) & set(theirs["budget"]):
        raise InputError(
            f"no shared budget: the baseline has {_listed(ours['budget'])}, "
            f"the variant {_listed(theirs['budget'])}"
        )
    cells = _looped_cells(ours) & _looped_cells(theirs)
    if not cells:
        raise InputError("no (budget, r) cell with r > 1 is in both studies")
    budgets = sorted({budget for budget, _ in cells})
    warnings = []
    donor, r1_from = (ours, "baseline") if (ours["r"] == 1).any() else (theirs, "variant")
    if not (donor["r"] == 1).any():
        warnings.append("no r = 1 runs in either study: both φ rest on looped runs alone")
    unlooped = donor[(donor["r"] == 1) & donor["budget"].isin(budgets)]
    set_aside: list[Dropped] = []
    tables = []
    for name, table in (("baseline", baseline), ("variant", variant)):
        cell = pd.MultiIndex.from_frame(table.runs[["budget", "r"]].astype(np.float64))
        looped = np.array([c in cells for c in cell], bool)
        unused = ~looped
        if name == r1_from:
            unused &= ~table.runs.index.isin(unlooped.index)
        for run, r in table.runs.loc[unused, ["run", "r"]].itertuples(index=False):
            reason = f"{name}: its (budget, r) cell is in one study only"
            if r == 1 and name == r1_from:
                reason = f"{name}: no looped run shares its budget"
            elif r == 1:
                reason = f"{name}: the r = 1 runs of the {r1_from} stand for both"
            set_aside.append(Dropped(str(run), reason))
        runs = pd.concat([unlooped, table.runs[looped]], ignore_index=True, join="inner")
        tables.append(replace(table, runs=runs))
    return tables[0], tables[1], set_aside, warnings


def _looped_cells(runs: pd.DataFrame) -> set[tuple[float, float]]:
    looped = runs.loc[runs["r"] > 1, ["budget", "r"]].astype(np.float64)
    return set(looped.itertuples(index=False, name=None))


def _listed(values: pd.Series) -> str:
    return ", ".join(f"{value:.3g}" for value in sorted(values.unique()))


def _cells(table: RunTable) -> pd.MultiIndex:
    """The (budget, r) cells in the order in which `blocks` numbers them."""
    keys = table.runs[["budget", "r"]].astype(np.float64).drop_duplicates()
    return pd.MultiIndex.from_frame(keys.sort_values(["budget", "r"]))


def _paired_draws(
    tables: Sequence[RunTable], fits: Sequence[FitResult], resamples: int, seed: int
) -> tuple[np.ndarray, list[pd.DataFrame]]:
    """One drawing of cells for both studies; (R, cells) counts and the refitted parameters."""
    counts_RB = None
    draws = []
    for table, result in zip(tables, fits, strict=True):
        block_N, n_blocks = blocks(table.runs, "cell")
        if counts_RB is None:
            counts_RB = draw_blocks(n_blocks, "cell", resamples, np.random.default_rng([seed, 1]))
        problem = problem_of(result, table.booked)
        rng = np.random.default_rng([seed, 2])
        draws.append(refit(problem, result.theta, counts_RB, block_N, rng).frame(problem))
    assert counts_RB is not None
    return counts_RB, draws
