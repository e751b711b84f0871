"""The batched solver of E + A·(N_once + r^φ·N_rec)^−α + B·D^−β: hundreds of fits in one array.

Five hundred starts and as many resamples take seconds with it, where one start at a time
(``least_squares``) takes minutes. It knows only laws with these parameters; without φ, φ = 0.

Shapes: S fits (starts × weightings), P = 6 parameters in the order of :data:`NAMES`, N runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis.laws.counting import FloatArray
from analysis.laws.problem import Problem

NAMES = ("log_E", "log_A", "log_B", "alpha", "beta", "phi")
LOG_E, LOG_A, LOG_B, ALPHA, BETA, PHI = range(6)

#: How many (fit, run) pairs are worked on at a time: some thirty float64 temporaries of this size.
CHUNK = 100_000
#: How many runs a matrix product sums at a time.
SUM_BLOCK = 8192


@dataclass(frozen=True)
class PowerLaws:
    """Logs of the runs, the Huber width and the box in the order of :data:`NAMES`."""

    log_once_N: FloatArray
    log_rec_N: FloatArray
    log_r_N: FloatArray
    log_tokens_N: FloatArray
    log_loss_N: FloatArray
    delta: float
    lower_P: FloatArray
    upper_P: FloatArray

    @staticmethod
    def of(problem: Problem) -> "PowerLaws":
        """The problem of a law with some or all of these parameters."""
        assert problem.law.delta is not None
        with np.errstate(divide="ignore"):  # n_once = 0: log is −inf, as it should be
            runs = problem.runs
            once, rec, r, tokens = (np.log(x) for x in vars(runs).values())
        at = columns_of(problem)
        lower, upper = np.zeros(6), np.zeros(6)
        lower[at], upper[at] = problem.lower_P, problem.upper_P
        return PowerLaws(
            once, rec, r, tokens, np.log(problem.loss_N), problem.law.delta, lower, upper
        )


def columns_of(problem: Problem) -> list[int]:
    """Where each of the law's θ stands among :data:`NAMES`."""
    return [NAMES.index(name) for name in problem.law.theta_names]


def chunks(n_fits: int, n_runs: int) -> Iterator[slice]:
    size = max(1, CHUNK // n_runs)
    return (slice(i, min(i + size, n_fits)) for i in range(0, n_fits, size))


def gram(left_SPN: FloatArray, right_SQN: FloatArray) -> FloatArray:
    """Σ_n left·right, (S, P, Q), in blocks of runs.

    BLAS splits longer sums over threads, which makes results depend on the machine and, where cores
    are busy, costs many times what it saves.
    """
    n_runs = left_SPN.shape[2]
    total = np.zeros((left_SPN.shape[0], left_SPN.shape[1], right_SQN.shape[1]))
    for first in range(0, n_runs, SUM_BLOCK):
        block = slice(first, first + SUM_BLOCK)
        total += left_SPN[..., block] @ right_SQN[..., block].swapaxes(1, 2)
    return total
