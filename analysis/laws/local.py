"""The local law: the loss as any smooth function of N_eff and D, to second order about the runs.

φ means what it means in the joint law, that all r share one function of N_once + r^φ·N_rec and D;
no shape of that function is assumed, so small studies whose terms do not add up can be fitted. It
says nothing outside the runs. Given φ it is linear: φ is searched on a grid over its whole box,
so every fit is the optimum.
"""

import numpy as np
import pandas as pd

from analysis.errors import NotIdentifiedError
from analysis.laws.counting import FloatArray
from analysis.laws.joint import PHI
from analysis.laws.law import Coefficient, Law, Runs, Values
from analysis.laws.problem import Minima, Problem, Solver

STEP = 0.005
#: How many numbers are worked on at a time.
CHUNK = 4_000_000
#: Least number of distinct values of a column, by what a refusal calls them.
AT_LEAST = {"r": 2, "widths": 3, "D": 3, "(budget, r) cells": 6}
MIN_RUNS = 12


def local(counted: pd.DataFrame) -> Law:
    """The law centred at the middle of a table.

    Raises NotIdentifiedError for a table too small to hold it.
    """
    _refuse(counted)
    runs = Runs.of(counted)
    middle_n, middle_u = np.log(runs.n_effective(0.0)).mean(), np.log(runs.tokens).mean()

    def columns(p: Values, runs: Runs):
        n = np.log(runs.n_effective(p["phi"])) - middle_n
        u = np.log(runs.tokens) - middle_u
        return (1.0, n, u, n * n, n * u, u * u)

    return Law(
        name="local",
        formula="L = c₀ + c₁n + c₂u + c₃n² + c₄nu + c₅u², n and u the logs of N_once + r^φ·N_rec "
        "and D about their middle",
        exponents={"phi": PHI},
        coefficients={f"c{k}": Coefficient(f"c{'₀₁₂₃₄₅'[k]}", signed=True) for k in range(6)},
        columns=columns,
        solver=SOLVER,
        delta=None,
        interval="jackknife",
    )


def _refuse(counted: pd.DataFrame) -> None:
    if len(counted) < MIN_RUNS:
        raise NotIdentifiedError(f"local law: {len(counted)} runs; it needs at least {MIN_RUNS}")
    width = counted["d_model"] if "d_model" in counted else counted["n_once"] + counted["n_rec"]
    looped = counted.loc[counted["n_rec"] > 0, "r"]
    cells = len(counted[["budget", "r"]].drop_duplicates())
    found = (looped.nunique(), width.nunique(), counted["tokens"].nunique(), cells)
    for (what, least), n in zip(AT_LEAST.items(), found, strict=True):
        if n < least:
            raise NotIdentifiedError(f"local law: {n} {what}; it needs at least {least}")


def solve(problem: Problem, exponents_SJ: FloatArray, weights_SN: FloatArray) -> Minima:
    """Least squares for each weighting; where a fit starts from does not matter."""
    shape = (len(exponents_SJ), len(problem.loss_N))
    weights_WN, row_S = np.unique(np.broadcast_to(weights_SN, shape), axis=0, return_inverse=True)
    low, high = (float(problem.exponents(edge)[0]) for edge in (problem.lower_P, problem.upper_P))
    grid = np.linspace(low, high, round((high - low) / STEP) + 1, dtype=np.float64)
    phi_W = _best(grid, squares(problem, grid, weights_WN))
    ends = [_at(problem, phi, w) for phi, w in zip(phi_W, weights_WN, strict=True)]
    theta, objective = zip(*ends, strict=True)
    row_S = row_S.reshape(-1)
    converged = np.ones(len(row_S), bool)
    return Minima(np.stack(theta)[row_S], np.array(objective)[row_S], converged)


SOLVER = Solver(solve, starts=1, resample_starts=0)


def squares(problem: Problem, grid: FloatArray, weights_WN: FloatArray) -> FloatArray:
    """Σ w·(L̂ − L)² at the best coefficients of every φ of the grid, (W, grid)."""
    n_runs = len(problem.loss_N)
    middle = weights_WN @ problem.loss_N / weights_WN.sum(1)
    loss = problem.loss_N - problem.loss_N.mean()
    offset = middle - problem.loss_N.mean()
    squares = np.empty((len(weights_WN), len(grid)))
    size = max(1, CHUNK // (36 * max(n_runs, len(weights_WN))))
    for first in range(0, len(grid), size):
        part = slice(first, first + size)
        columns = problem.law.columns({"phi": grid[part, None]}, problem.runs)
        shape = (len(grid[part]), n_runs)
        X_GNK = np.stack([np.broadcast_to(c, shape) for c in columns], axis=2)
        pairs_GNP = (X_GNK[..., :, None] * X_GNK[..., None, :]).reshape(*shape, 36)
        normal_GWKK = (weights_WN @ pairs_GNP).reshape(len(pairs_GNP), -1, 6, 6)
        target_GWK = (weights_WN * loss) @ X_GNK - offset[:, None] * (weights_WN @ X_GNK)
        scale = np.sqrt(np.maximum(np.einsum("gwkk->gwk", normal_GWKK), 1e-300))
        normal_GWKK /= scale[..., None] * scale[..., None, :]
        normal_GWKK += 1e-12 * np.eye(6)
        scaled = target_GWK / scale
        solved = np.linalg.solve(normal_GWKK, scaled[..., None])[..., 0]
        around = loss - offset[:, None]
        squares[:, part] = (weights_WN * around**2).sum(1)[:, None] - (solved * scaled).sum(-1).T
    return squares


def _best(grid: FloatArray, squares_WG: FloatArray) -> FloatArray:
    """φ of least squares: the vertex of the parabola through the best point and its neighbours."""
    best = squares_WG.argmin(1)
    phi = grid[best].copy()
    inner = np.flatnonzero((best > 0) & (best < len(grid) - 1))
    left, middle, right = (squares_WG[inner, best[inner] + k] for k in (-1, 0, 1))
    bend = left - 2.0 * middle + right
    shift = np.where(bend > 0, 0.5 * (left - right) / np.where(bend > 0, bend, 1.0), 0.0)
    phi[inner] += STEP * shift
    return phi


def _at(problem: Problem, phi: float, weights_N: FloatArray) -> tuple[FloatArray, float]:
    """θ and the objective at one φ."""
    columns = problem.law.columns({"phi": phi}, problem.runs)
    X_NK = np.stack([np.broadcast_to(c, weights_N.shape) for c in columns], axis=1)
    root = np.sqrt(weights_N)
    solved, *_ = np.linalg.lstsq(X_NK * root[:, None], problem.loss_N * root, rcond=None)
    objective = 0.5 * float(weights_N @ (X_NK @ solved - problem.loss_N) ** 2)
    return np.append(solved, phi), objective
