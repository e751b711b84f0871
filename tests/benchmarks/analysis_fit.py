"""Time of the scaling-law analysis, beside the protocol of the paper, in one run.

    python -m tests.benchmarks.analysis_fit [--quick]

On the 116 published runs: the whole analysis (500 starts for every fit, φ free, 0 and 1, four
architectures, halves, three bookings, leave-one-out, 200 resamples), one joint fit from 500 starts,
and the same fit by 500 uniform starts of SciPy's L-BFGS-B at its default tolerances, given the
analytic gradient and one BLAS thread. Then one fit and twenty resamples of synthetic tables of up
to 100,000 runs: time and memory. --quick stops at 10,000 runs and 50 starts of the baseline.

On two CPU cores, shared with other work:

    whole analysis of 116 runs, 500 starts a fit, 200 resamples
      3.82 s, 500 of 500 starts at the optimum
    one joint fit                starts  ms/start  at the optimum  within 1 %  success
      ours                          500      0.47          100.0%
      stock L-BFGS-B                500      4.97            0.2%        1.6%   100.0%
      ratio, stock over ours                 10.5
      whole analysis over 500 stock starts: 1.54
      the best stock start is above our optimum by 1.9e-07 of it
    growth: one joint fit from 20 starts, then 20 resamples
         runs    fit s   µs/run   bootstrap s   µs/run   peak memory MB   φ
        1,000     0.05     48.2          0.21    209.8              204  0.4455
       10,000     0.47     47.1          1.69    169.3              227  0.4634
      100,000     5.97     59.7         20.38    203.8              269  0.4609
"""

import argparse
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# SciPy's L-BFGS-B calls BLAS on vectors of a hundred numbers; threads make that ten times slower.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pandas as pd
from scipy.optimize import minimize

import analysis
from analysis import (
    FittedLaw,
    Runs,
    Settings,
    book_injection,
    bootstrap_fit,
    fit,
    fit_study,
    load_runs,
)
from analysis.laws.joint import JOINT
from analysis.laws.power_laws import PowerLaws
from analysis.laws.problem import Problem

PUBLISHED = Path(analysis.__file__).parent / "data" / "schwethelm2026_isodepth.csv"
STARTS, RESAMPLES = 500, 200
SIZES = (1_000, 10_000, 100_000)
TRUTH = FittedLaw(
    JOINT, {"E": 1.57, "A": 28.45, "B": 887.5, "alpha": 0.2, "beta": 0.367, "phi": 0.46}
)

T = TypeVar("T")


def timed(make: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    return make(), time.perf_counter() - start


def stock_lbfgsb(problem: PowerLaws, n: int) -> tuple[np.ndarray, int]:
    """Objectives of n uniform starts in the whole box, and how many report success."""
    rng = np.random.default_rng(0)
    bounds = list(zip(problem.lower_P, problem.upper_P, strict=True))
    ends = [
        minimize(
            value_and_gradient,
            rng.uniform(problem.lower_P, problem.upper_P),
            args=(problem,),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
        )
        for _ in range(n)
    ]
    return np.array([end.fun for end in ends]), sum(end.success for end in ends)


def value_and_gradient(theta: np.ndarray, problem: PowerLaws) -> tuple[float, np.ndarray]:
    """Σ Huber and its gradient for one point, as lean as NumPy allows."""
    log_e, log_a, log_b, alpha, beta, phi = theta
    log_rec = problem.log_rec_N + phi * problem.log_r_N
    log_n = np.logaddexp(problem.log_once_N, log_rec)
    terms = np.stack(
        [np.full_like(log_n, log_e), log_a - alpha * log_n, log_b - beta * problem.log_tokens_N]
    )
    top = terms.max(0)
    shares = np.exp(terms - top)
    total = shares.sum(0)
    residual = top + np.log(total) - problem.log_loss_N
    size = np.abs(residual)
    inner = np.minimum(size, problem.delta)
    pull = shares / total * np.clip(residual, -problem.delta, problem.delta)
    by_phi = -alpha * (pull[1] * np.exp(log_rec - log_n)) @ problem.log_r_N
    by_exponent = [-pull[1] @ log_n, -pull[2] @ problem.log_tokens_N]
    return (inner * (size - 0.5 * inner)).sum(), np.array([*pull.sum(1), *by_exponent, by_phi])


def published(n_baseline: int) -> None:
    table = load_runs(PUBLISHED)
    study, seconds = timed(lambda: fit_study(table, Settings(starts=STARTS, resamples=RESAMPLES)))
    print(f"whole analysis of {len(table)} runs, {STARTS} starts a fit, {RESAMPLES} resamples")
    print(f"  {seconds:.2f} s, {study.fit.starts.at_optimum} of {STARTS} starts at the optimum")

    joint, ours = timed(lambda: fit(table, starts=STARTS))
    problem = PowerLaws.of(Problem.of(JOINT, table.booked))
    (objectives, successes), baseline = timed(lambda: stock_lbfgsb(problem, n_baseline))
    per_ours, per_baseline = ours / STARTS, baseline / n_baseline
    print("one joint fit                starts  ms/start  at the optimum  within 1 %  success")
    share = joint.starts.share
    print(f"  ours                       {STARTS:6}  {1e3 * per_ours:8.2f}  {share:14.1%}")
    at_optimum = (objectives <= joint.objective * (1 + 1e-6)).mean()
    within = (objectives <= joint.objective * 1.01).mean()
    baseline_row = f"{n_baseline:6}  {1e3 * per_baseline:8.2f}  {at_optimum:14.1%}"
    print(
        f"  stock L-BFGS-B             {baseline_row}"
        f"  {within:10.1%}  {successes / n_baseline:7.1%}"
    )
    print(f"  ratio, stock over ours             {per_baseline / per_ours:8.1f}")
    print(f"  whole analysis over {STARTS} stock starts: {seconds / (per_baseline * STARTS):.2f}")
    above = objectives.min() / joint.objective - 1
    print(f"  the best stock start is above our optimum by {above:.1e} of it")


def synthetic(n_runs: int) -> pd.DataFrame:
    """Published shapes and budgets, repeated with tokens spread around each, noise of 0.4 %."""
    rng = np.random.default_rng(0)
    frame = load_runs(PUBLISHED).runs
    frame = frame.iloc[np.arange(n_runs) % len(frame)].reset_index(drop=True)
    frame["run"] = [f"run{i}" for i in range(n_runs)]
    frame["tokens"] *= rng.uniform(0.7, 1.4, n_runs)
    true = TRUTH.predict(Runs.of(book_injection(frame, "once")))
    return frame.assign(loss=true * np.exp(0.004 * rng.standard_normal(n_runs)))


def growth(sizes: tuple[int, ...]) -> None:
    print("growth: one joint fit from 20 starts, then 20 resamples")
    print("     runs    fit s   µs/run   bootstrap s   µs/run   peak memory MB   φ")
    for n_runs in sizes:
        frame = synthetic(n_runs)
        joint, fit_s = timed(lambda frame=frame: fit(frame, starts=20))  # type: ignore[misc]
        _, boot_s = timed(
            lambda frame=frame, joint=joint: bootstrap_fit(frame, joint, resamples=20)  # type: ignore[misc]
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"  {n_runs:7,}  {fit_s:7.2f}  {1e6 * fit_s / n_runs:7.1f}  {boot_s:12.2f}"
            f"  {1e6 * boot_s / n_runs:7.1f}  {peak:15.0f}  {joint.phi:.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="smaller tables, fewer starts")
    quick = parser.parse_args().quick
    published(50 if quick else STARTS)
    growth(SIZES[:2] if quick else SIZES)


if __name__ == "__main__":
    main()
