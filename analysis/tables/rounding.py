"""Values of ``r`` and ``budget`` that mean the same number become the same number.

Blocks of the bootstrap, parabolas and tables are made of runs with equal (budget, r), so 8.0000001
beside 8, or the FLOPs that each run spent in place of those it aimed at, would tear them apart.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: Relative differences that arithmetic and printing leave.
ROUNDING = 1e-6
#: Runs that aim at one budget end within this factor of each other, a whole number of steps …
STEPS = 0.05
#: … and budgets of a grid lie further apart.
MAX_SPREAD = 0.1


def merge_rounded(frame: pd.DataFrame) -> list[str]:
    """Merge in place; what was merged, in words."""
    values = frame["budget"].to_numpy(np.float64)
    group = _groups(values, STEPS)
    several = [values[group == g] for g, n in enumerate(np.bincount(group)) if n > 1]
    spread = max((each.max() / each.min() - 1 for each in several), default=0.0)
    is_grid = 2 * (group.max() + 1) <= len(values) and ROUNDING < spread <= MAX_SPREAD
    why = f"runs of one lie within {spread:.1%}; a budget is what runs aim at, not what each spent"
    notes = _merge(frame, "r", ROUNDING, "equal up to rounding")
    if is_grid:
        return [*notes, *_merge(frame, "budget", STEPS, why)]
    return [*notes, *_merge(frame, "budget", ROUNDING, "equal up to rounding")]


def _merge(frame: pd.DataFrame, column: str, tolerance: float, why: str) -> list[str]:
    values = frame[column].to_numpy(np.float64)
    group = _groups(values, tolerance)
    before, after = len(np.unique(values)), group.max() + 1
    if after >= before:
        return []
    merged = values.copy()
    for g in range(after):
        merged[group == g] = _usual(values[group == g])
    changed = int((np.isfinite(values) & (merged != values)).sum())
    frame[column] = merged
    shown = ", ".join(f"{value:.6g}" for value in np.unique(merged)[:8])
    more = ", …" if after > 8 else ""
    return [
        f"{column} has {before} values that are taken as {after} ({shown}{more}), in {changed} of "
        f"{len(frame)} runs: {why}"
    ]


def _groups(values: NDArray[np.float64], tolerance: float) -> NDArray[np.int64]:
    """Number of the group of each value; a relative gap above the tolerance parts two groups.

    What is no positive number is a group of its own.
    """
    order = np.argsort(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        close = np.diff(np.log(values[order])) <= tolerance
    group = np.zeros(len(values), np.int64)
    group[order[1:]] = np.cumsum(~close)
    return group


def _usual(values: NDArray[np.float64]) -> float:
    """The value of most of them, or else their median, at three digits if that lies among them."""
    found, counts = np.unique(values, return_counts=True)
    if 2 * counts.max() > len(values):
        return float(found[counts.argmax()])
    middle = float(np.median(values))
    rounded = float(f"{middle:.3g}")
    return rounded if found[0] <= rounded <= found[-1] else middle
