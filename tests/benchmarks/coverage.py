"""How often 95 % intervals of φ by the local law hold the true φ, on simulated small studies.

    python -m tests.benchmarks.coverage [--tables=200]

Tables on the grid of configs/studies/quickstart.py (36 runs, 12 (budget, r) cells). Their losses
follow the surface that the local law finds in a laptop's runs, with φ = 0.8, noise of each run, and
noise that the runs of one cell share. Beside the jackknife, the baseline: the profile likelihood,
all φ whose squares stay within t² residual variances of the least ones, which takes every run for
independent.

On one busy CPU core, in eight minutes:

    coverage of 95 % intervals over 200 tables, median width in brackets
      noise, nats: run   cell   jackknife over cells   profile likelihood
                 0.020  0.000           0.970 [0.14]         0.900 [0.10]
                 0.020  0.010           0.975 [0.17]         0.895 [0.11]
                 0.015  0.015           0.965 [0.19]         0.855 [0.10]
                 0.020  0.020           0.970 [0.26]         0.855 [0.14]
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from analysis import Runs, book_injection
from analysis.laws.law import FittedLaw
from analysis.laws.local import STEP, local, squares
from analysis.laws.problem import Problem
from analysis.scaling.fit import fit
from analysis.scaling.jackknife import jackknife
from configs.studies.quickstart import get_runs
from looped_jax.config import resolve
from looped_jax.model.accounting import count_parameters

PHI = 0.8
#: Coefficients of the local law for the quickstart's runs, nats.
SURFACE = {"c0": 3.79, "c1": -0.19, "c2": -0.18, "c3": -0.026, "c4": -0.163, "c5": -0.014}
#: Standard deviations in nats, (of a run, of what the runs of a cell share).
NOISES = ((0.02, 0.0), (0.02, 0.01), (0.015, 0.015), (0.02, 0.02))


def grid() -> pd.DataFrame:
    """The quickstart's runs without losses."""
    rows = []
    for config in get_runs():
        run = resolve(config)
        counts = count_parameters(run.model)
        rows.append(
            {
                "budget": config.budget.flops,
                "r": run.model.recurrences,
                "d_model": run.model.width,
                "n_once": counts.n_once,
                "n_rec": counts.n_rec,
                "n_inject": counts.n_inject,
                "tokens": run.steps * run.batch_tokens,
            }
        )
    return pd.DataFrame(rows)


def coverage(tables: int, noises: Sequence[tuple[float, float]], seed: int = 0) -> pd.DataFrame:
    """Per noise: the share of intervals that hold φ, and their median width, by both methods."""
    frame = grid()
    counted = book_injection(frame, "once")
    law = local(counted.assign(loss=0.0))
    exact = FittedLaw(law, {"phi": PHI, **SURFACE}).predict(Runs.of(counted))
    cell = frame.groupby(["budget", "r"]).ngroup().to_numpy()
    rows = []
    for run_noise, cell_noise in noises:
        rng = np.random.default_rng(seed)
        held, width = np.zeros((2, tables)), np.zeros((2, tables))
        for i in range(tables):
            shared = cell_noise * rng.standard_normal(cell.max() + 1)[cell]
            loss = exact + shared + run_noise * rng.standard_normal(len(frame))
            for k, (low, high) in enumerate(intervals(frame.assign(loss=loss))):
                held[k, i], width[k, i] = low <= PHI <= high, high - low
        rows.append((run_noise, cell_noise, *held.mean(1), *np.median(width, axis=1)))
    names = ["run", "cell", "jackknife", "profile", "jackknife_width", "profile_width"]
    return pd.DataFrame(rows, columns=names)


def intervals(frame: pd.DataFrame) -> tuple[tuple[float, float], tuple[float, float]]:
    """The 95 % intervals of φ by the jackknife over cells and by the profile likelihood."""
    fitted = fit(frame, "local")
    counted = book_injection(frame, "once")
    by_cells = jackknife(counted, fitted).estimate("phi", fitted.params["phi"]).ci95
    assert by_cells is not None
    problem = Problem.of(fitted.law, counted)
    phi = np.arange(-3.0, 3.0 + STEP / 2, STEP)
    left = squares(problem, phi, np.ones((1, len(frame))))[0]
    free = len(frame) - len(fitted.theta)
    bound = left.min() * (1 + stats.t.ppf(0.975, free) ** 2 / free)
    within = phi[left <= bound]
    return by_cells, (float(within[0]), float(within[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tables", type=int, default=200, help="simulated tables of each noise")
    tables = parser.parse_args().tables
    start = time.perf_counter()
    found = coverage(tables, NOISES)
    print(f"coverage of 95 % intervals over {tables} tables, median width in brackets")
    print("  noise, nats: run   cell   jackknife over cells   profile likelihood")
    for row in found.itertuples():
        print(
            f"             {row.run:.3f}  {row.cell:.3f}"
            f"           {row.jackknife:.3f} [{row.jackknife_width:.2f}]"
            f"         {row.profile:.3f} [{row.profile_width:.2f}]"
        )
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
