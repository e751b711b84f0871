"""Fit any law with SciPy's ``least_squares``, one start at a time.

Every coefficient is searched as the log of its whole term at the middle of the data, where it is
nearly uncorrelated with the exponent of that term: from there random starts reach the optimum,
while a search over (A, α, …) stops in the narrow valley that couples the two. Squares come first,
then the Huber loss.
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize

from analysis.laws.counting import FloatArray
from analysis.laws.problem import Minima, Problem, Solver, jacobian

#: A term is between e^−40 and e^40 nats at the middle of the data.
TERM = 40.0
MAX_EVALUATIONS = 1000


def solve(problem: Problem, exponents_SJ: FloatArray, weights_SN: FloatArray) -> Minima:
    """One fit for each row of exponents to start from; ``weights_SN`` may have one row for all."""
    weights_SN = np.broadcast_to(weights_SN, (len(exponents_SJ), len(problem.loss_N)))
    ends = [_fit(problem, s, w) for s, w in zip(exponents_SJ, weights_SN, strict=True)]
    theta, objective, converged = zip(*ends, strict=True)
    return Minima(np.stack(theta), np.array(objective), np.array(converged))


SOLVER = Solver(solve, starts=12, resample_starts=0)


def _fit(
    problem: Problem, exponents_J: FloatArray, weights_N: FloatArray
) -> tuple[FloatArray, float, bool]:
    k, free = problem.n_coefficients, problem.free_P
    lower = np.concatenate([np.full(k, -TERM), problem.exponents(problem.lower_P)])
    upper = np.concatenate([np.full(k, TERM), problem.exponents(problem.upper_P)])
    start = np.concatenate([_largest_terms(problem, exponents_J, weights_N), exponents_J])

    def at(moved: FloatArray) -> tuple[FloatArray, FloatArray]:
        u = np.broadcast_to(start, (*moved.shape[:-1], len(start))).copy()
        u[..., free] = moved
        return _at(problem, u)

    def search(moved: FloatArray, loss: Callable[..., FloatArray], tolerance: float):
        return optimize.least_squares(
            lambda u: at(u[None])[1][0],
            np.clip(moved, lower[free] + 1e-9, upper[free] - 1e-9),
            jac=lambda u: jacobian(lambda around: at(around)[1], u).T,
            bounds=(lower[free], upper[free]),
            x_scale="jac",
            loss=loss,
            f_scale=problem.law.delta,
            ftol=tolerance,
            xtol=tolerance,
            gtol=tolerance,
            max_nfev=MAX_EVALUATIONS,
        )

    near = search(start[free], lambda z: np.stack([z * weights_N, weights_N, 0 * z]), 1e-3)
    end = search(near.x, lambda z: _huber(z, weights_N), 1e-15)
    return at(end.x[None])[0][0], float(end.cost), end.status > 0


def _huber(z: FloatArray, weights_N: FloatArray) -> FloatArray:
    """ρ(z) and its derivatives for z = (residual/δ)², weighed."""
    outside = np.maximum(z, 1.0)
    inside = z <= 1.0
    value = np.where(inside, z, 2.0 * np.sqrt(outside) - 1.0)
    slope = outside**-0.5
    return weights_N * np.stack([value, slope, np.where(inside, 0.0, -0.5 * outside**-1.5)])


def _at(problem: Problem, u_SP: FloatArray) -> tuple[FloatArray, FloatArray]:
    """θ (S, P) and log L̂ − log L (S, N) at u: logs of the terms at the middle, exponents."""
    values, columns_SKN, middle_SK = _columns(problem, problem.exponents(u_SP))
    theta = u_SP.copy()
    theta[:, : problem.n_coefficients] -= middle_SK
    terms_SKN = columns_SKN * np.exp(theta[:, : problem.n_coefficients, None])
    predicted = problem.law.combine(values, list(terms_SKN.swapaxes(0, 1)))
    return theta, np.log(predicted) - np.log(problem.loss_N)


def _columns(problem: Problem, exponents_SJ: FloatArray):
    """The exponents by name (S, 1), the law's columns (S, K, N), the mean of their logs (S, K)."""
    values = {n: exponents_SJ[:, [j]] for j, n in enumerate(problem.law.exponents)}
    columns = problem.law.columns(values, problem.runs)
    columns_SKN = np.empty((len(exponents_SJ), len(columns), len(problem.loss_N)))
    for i, column in enumerate(columns):
        columns_SKN[:, i] = column
    # A column with zeros switches its term on for some runs: it has no exponent, and no middle.
    positive = (columns_SKN > 0).all(axis=2, keepdims=True)
    return values, columns_SKN, np.log(np.where(positive, columns_SKN, 1.0)).mean(axis=2)


def _largest_terms(problem: Problem, exponents_J: FloatArray, weights_N: FloatArray) -> FloatArray:
    """Logs of the terms at the middle (K,) by non-negative least squares of their sum."""
    _, columns_SKN, middle_SK = _columns(problem, exponents_J[None])
    share = columns_SKN[0].T * np.exp(-middle_SK[0]) / problem.loss_N[:, None]
    root = np.sqrt(weights_N)
    terms, _ = optimize.nnls(share * root[:, None], root)
    return np.log(np.maximum(terms, 1e-3))
