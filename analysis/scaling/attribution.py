"""Where the loss difference between two studies comes from, and what it does to the best width.

At equal budget and width a variant can be better because its FLOPs buy more tokens, or because its
parameters are worth more. The fitted law says what the tokens account for; the rest is capacity.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.laws.counting import FloatArray
from analysis.laws.law import FittedLaw, Runs
from analysis.scaling.allocation import optimal_allocation
from analysis.scaling.flops import Architecture
from analysis.tables.estimate import Estimate, estimate
from analysis.tables.runs import RunTable


@dataclass(frozen=True)
class LossShares:
    """Variant minus baseline loss (nats) over runs of equal (budget, r, width); negative is a gain.

    tokens: what the different number of tokens accounts for, by the baseline's law at the
    baseline's size. capacity: the rest. from_phi: what the variant's matrices and φ alone predict,
    by that law at the baseline's tokens.
    """

    r: float
    n_pairs: int
    measured: Estimate
    tokens: Estimate
    capacity: Estimate
    from_phi: Estimate


@dataclass(frozen=True)
class WidthShift:
    """Variant over baseline, the geometric mean over the shared budgets.

    optimal: compute-optimal width d*; above 1 the variant wants wider models on fewer tokens.
    effective: the width a baseline model needs for the variant's effective parameters.
    extrapolated: an optimum lies beyond the widths that were trained.
    """

    r: float
    extrapolated: bool
    optimal: Estimate
    effective: Estimate


def loss_shares(
    ours: RunTable, theirs: RunTable, laws: Sequence[FittedLaw], weights: pd.DataFrame
) -> list[LossShares]:
    """Per r, over runs of equal (budget, r, d_model) in both tables.

    laws: baseline's and variant's with their paired resamples (1 + R values a parameter); weights:
    how often each (budget, r) cell (a column) was drawn in each resample (R rows).
    """
    key = ["budget", "r", "d_model"]
    columns = ["n_once", "n_rec", "tokens", "loss"]
    # Repeated runs of one shape (seeds) are averaged: a pair is one shape in both studies.
    sides = [t.booked.groupby(key)[columns].mean().reset_index() for t in (ours, theirs)]
    pairs = sides[0].merge(sides[1], on=key, suffixes=("_b", "_v"))
    result = []
    for r, mine in pairs[pairs["r"] > 1].groupby("r"):
        cell = pd.MultiIndex.from_frame(mine[["budget", "r"]].astype(np.float64))
        drawn = np.vstack([np.ones(len(mine)), weights[cell].to_numpy(np.float64)])
        total = drawn.sum(axis=1, keepdims=True)
        # A resample without any cell of this r says nothing about it.
        share = np.divide(drawn, total, out=np.full_like(drawn, np.nan), where=total > 0)
        parts = _parts(mine, float(r), laws[0], laws[1].phi)
        values = {name: estimate((share * part).sum(axis=1)) for name, part in parts.items()}
        result.append(LossShares(r=float(r), n_pairs=len(mine), **values))
    return result


def _parts(pairs: pd.DataFrame, r: float, law: FittedLaw, phi_variant) -> dict[str, FloatArray]:
    """Per matched pair, (1 + R, pairs): the loss difference and its parts, in nats."""
    column = {name: pairs[name].to_numpy(np.float64) for name in pairs}

    def loss(size: str, tokens: str, phi) -> FloatArray:
        """By the baseline's law, the block of `size` worth what φ makes of it."""
        block = column[f"n_rec_{size}"] * r ** (phi - law.phi)
        counts = column[f"n_once_{size}"], block, np.full(len(pairs), r), column[f"tokens_{tokens}"]
        return law.predict(Runs(*counts))

    baseline = loss("b", "b", law.phi)
    measured = column["loss_v"] - column["loss_b"]
    tokens = loss("b", "v", law.phi) - baseline
    return {
        "measured": measured + np.zeros_like(tokens),
        "tokens": tokens,
        "capacity": measured - tokens,
        "from_phi": loss("v", "b", phi_variant) - baseline,
    }


def width_shifts(
    ours: RunTable,
    designs: tuple[dict[float, Architecture], dict[float, Architecture]],
    laws: Sequence[FittedLaw],
) -> list[WidthShift]:
    """Per looped r, from both laws with their paired resamples."""
    budgets = np.array(sorted(ours.runs["budget"].unique()), np.float64)
    injection = ours.injection
    result = []
    for r in sorted(set(designs[0]) - {1.0}):
        base, variant = designs[0][r], designs[1][r]
        best = [
            optimal_allocation(law, design, injection, budgets)
            for law, design in zip(laws, (base, variant), strict=True)
        ]
        ratio = np.exp(np.log(best[1].d_model / best[0].d_model).mean(axis=1))
        d = float(np.sqrt(base.d_min * base.d_max))
        size_b = base.n_effective(laws[0].phi, injection)(d)
        size_v = variant.n_effective(laws[1].phi, injection)(d)
        # N_eff grows with d² but for injections without a matrix; exact there, close elsewhere.
        effective = np.sqrt(size_v / size_b).ravel()
        extrapolated = any(each.first.extrapolated.any() for each in best)
        result.append(WidthShift(r, extrapolated, estimate(ratio), estimate(effective)))
    return result
