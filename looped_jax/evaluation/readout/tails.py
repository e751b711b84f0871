"""How a positive quantity is distributed over tokens: centre, 99th percentile, weight of the tail.

Every number has its interval: quantiles and tail are computed again on each resample of the text.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from looped_jax.evaluation.scored.bootstrap import Bootstrap, Estimate, estimates

# The tokens that count as the tail; over them the tail index is estimated.
TAIL_SHARE = 0.05
# Order statistics are computed anew for so many resamples.
RESAMPLES = 200


def distribution(bootstrap: Bootstrap, values_RN: np.ndarray) -> dict[str, list[dict[str, Any]]]:
    """Mean, median, 99th percentile and tail index of every row over its tokens.

    The tail index is Hill's: 1 / mean log(x / x_min) over the largest 5 % of the tokens, x_min the
    smallest of them. A power law P(X > x) ~ x^(−a) has index a, so the smaller the index the
    heavier the tail: below 2 the variance is infinite. Light tails give large numbers.
    """
    found: dict[str, list[dict[str, Any]]] = {"mean": estimates(bootstrap.means(values_RN))}
    statistics: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        "median": lambda x_N, w_N: quantile(x_N, w_N, 0.5),
        "p99": lambda x_N, w_N: quantile(x_N, w_N, 0.99),
        "tail_index": tail_index,
    }
    rows: dict[str, list[list[float]]] = {name: [] for name in statistics}
    for values_N in values_RN:
        order = np.argsort(values_N, kind="stable")
        x_N = np.asarray(values_N, np.float64)[order]
        of_row: dict[str, list[float]] = {name: [] for name in statistics}
        for weights_N in bootstrap.token_weights(RESAMPLES):
            w_N = weights_N[order]
            for name, statistic in statistics.items():
                of_row[name].append(statistic(x_N, w_N))
        for name, values in of_row.items():
            rows[name].append(values)
    for name, of_rows in rows.items():
        found[name] = [Estimate.of(row[0], np.asarray(row[1:])).to_json() for row in of_rows]
    return found


def quantile(ascending_N: np.ndarray, weights_N: np.ndarray, level: float) -> float:
    """The smallest value with this share of the weight at or below it."""
    cumulative = np.cumsum(weights_N)
    return float(ascending_N[np.searchsorted(cumulative, level * cumulative[-1])])


def tail_index(ascending_N: np.ndarray, weights_N: np.ndarray) -> float:
    """Hill's estimate of the tail index over the largest TAIL_SHARE of the weight.

    NaN where the tail is a single value, which has no index.
    """
    x_N, w_N = ascending_N[::-1], weights_N[::-1]
    cumulative = np.cumsum(w_N)
    count = np.searchsorted(cumulative, TAIL_SHARE * cumulative[-1]) + 1
    if not x_N[count - 1] > 0:
        return float("nan")
    excess = np.sum(w_N[:count] * np.log(x_N[:count] / x_N[count - 1]))
    return float(cumulative[count - 1] / excess) if excess > 0 else float("nan")
