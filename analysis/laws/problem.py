"""The fitting problem: logs of the runs, the width of the Huber loss, the box.

Shapes of the whole optimiser: S fits (starts × weightings), P = 6 parameters in the order of
:data:`NAMES`, N runs. A Chinchilla law is the joint law with log r = 0 and φ fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.laws.laws import FloatArray

BoolArray = NDArray[np.bool_]

NAMES = ("log_E", "log_A", "log_B", "alpha", "beta", "phi")
LOG_E, LOG_A, LOG_B, ALPHA, BETA, PHI = range(6)

#: The box of the iso-depth paper, arXiv:2604.21106.
LOWER = np.array([-3.0, -5.0, -5.0, 0.0, 0.0, -3.0])
UPPER = np.array([2.0, 35.0, 35.0, 2.5, 2.5, 3.0])

#: How many (fit, run) pairs are worked on at a time: some thirty float64 temporaries of this size.
CHUNK = 100_000
#: How many runs a matrix product sums at a time.
SUM_BLOCK = 8192


@dataclass(frozen=True)
class Problem:
    """What is fitted: logs of the runs, the Huber width and the box."""

    log_once_N: FloatArray
    log_rec_N: FloatArray
    log_r_N: FloatArray
    log_tokens_N: FloatArray
    log_loss_N: FloatArray
    delta: float
    lower_P: FloatArray
    upper_P: FloatArray

    @staticmethod
    def from_booked(frame: pd.DataFrame, delta: float) -> Problem:
        """The joint law on a booked table (see ``laws.book_injection``)."""

        def log(name: str) -> FloatArray:
            with np.errstate(divide="ignore"):  # n_once = 0: log is −inf, as it should be
                return np.log(frame[name].to_numpy(np.float64))

        return Problem(
            log("n_once"), log("n_rec"), log("r"), log("tokens"), log("loss"), delta, LOWER, UPPER
        )

    def fixed(self, index: int, value: float) -> Problem:
        """The same with one parameter held at a value."""
        lower, upper = self.lower_P.copy(), self.upper_P.copy()
        lower[index] = upper[index] = value
        return replace(self, lower_P=lower, upper_P=upper)

    @property
    def free_P(self) -> BoolArray:
        """Which parameters may move."""
        return self.lower_P < self.upper_P

    def random_starts(self, n: int, rng: np.random.Generator) -> FloatArray:
        """(n, 3) uniform draws of (α, β, φ) from the box."""
        return rng.uniform(self.lower_P[ALPHA:], self.upper_P[ALPHA:], (n, 3))


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
