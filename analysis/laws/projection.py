"""From a point (α, β, φ) anywhere in the box to the neighbourhood of an optimum.

Given (α, β, φ) the law is linear in (E, A, B), so these are solved exactly, non-negative, and only
the other three are searched (variable projection: Golub & Pereyra 1973, with Kaufman's Jacobian).
Squares of L̂/L − 1, which is log L̂ − log L to first order, stand in for the Huber loss here;
``newton.minimise`` has the last word. A stock optimiser on all six parameters from the same random
points mostly stops in the narrow valley that couples A with α and B with β.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from analysis.laws.counting import BoolArray, FloatArray
from analysis.laws.power_laws import ALPHA, PowerLaws, chunks, gram

MAX_STEPS = 40
#: Stop when a step promises less than this share of the squares: the rest is Newton's.
TOLERANCE = 1e-3

#: Every choice of terms among (E, A, B) that may be non-zero, and as a mask.
SUBSETS = [list(s) for size in (1, 2, 3) for s in itertools.combinations(range(3), size)]
MASKS = [np.isin(range(3), subset) for subset in SUBSETS]


def project(problem: PowerLaws, shape_S3: FloatArray, weights_SN: FloatArray) -> FloatArray:
    """θ (S, P) near an optimum from starts (α, β, φ); ``weights_SN`` may have one row for all."""
    theta = np.empty((len(shape_S3), 6))
    shared = len(weights_SN) == 1
    for rows in chunks(len(shape_S3), len(problem.log_loss_N)):
        weights = weights_SN if shared else weights_SN[rows]
        theta[rows] = _search(problem, shape_S3[rows], weights)
    return np.clip(theta, problem.lower_P, problem.upper_P)


def _search(problem: PowerLaws, shape_S3: FloatArray, weights_SN: FloatArray) -> FloatArray:
    weights_SN = np.broadcast_to(weights_SN, (len(shape_S3), weights_SN.shape[1]))
    lower, upper = problem.lower_P[ALPHA:], problem.upper_P[ALPHA:]
    state = _solve_terms(problem, np.clip(shape_S3, lower, upper), weights_SN)
    result = np.empty((len(shape_S3), 6))
    damping = np.full(len(shape_S3), 1e-2)
    active = np.arange(len(shape_S3))
    for _ in range(MAX_STEPS):
        held = (state.shape_S3 <= lower) & (state.gradient_S3 >= 0)
        held |= (state.shape_S3 >= upper) & (state.gradient_S3 <= 0)
        step, promise = _damped_step(state, held, damping)
        done = promise <= TOLERANCE * state.squares_S
        result[active[done]] = state.theta_SP[done]
        active, damping, step, state = active[~done], damping[~done], step[~done], state[~done]
        if not len(active):
            return result
        trial = np.clip(state.shape_S3 + step, lower, upper)
        moved = _solve_terms(problem, trial, weights_SN[active])
        better = moved.squares_S < state.squares_S
        state = state.where(better, moved)
        damping = damping * np.where(better, 0.1, 8.0)
    result[active] = state.theta_SP
    return result


def _damped_step(
    state: "_Solved", held_S3: BoolArray, damping_S: FloatArray
) -> tuple[FloatArray, FloatArray]:
    scale = np.maximum(state.curvature_S33.diagonal(axis1=1, axis2=2), 1e-4 * state.reach_S3)
    curvature = state.curvature_S33 + damping_S[:, None, None] * scale[:, None] * np.eye(3)
    held_both = held_S3[:, :, None] | held_S3[:, None, :]
    curvature = np.where(held_both, np.eye(3), curvature)
    gradient = np.where(held_S3, 0.0, state.gradient_S3)
    step = -np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
    return np.asarray(step), np.asarray(-0.5 * (gradient * step).sum(-1))


@dataclass(frozen=True)
class _Solved:
    """At (α, β, φ): the best (E, A, B), half the squares left, and their slope and curvature."""

    shape_S3: FloatArray
    theta_SP: FloatArray
    squares_S: FloatArray
    gradient_S3: FloatArray
    curvature_S33: FloatArray
    reach_S3: FloatArray  # the curvature before the linear terms took their part

    def __getitem__(self, rows: BoolArray) -> "_Solved":
        return _Solved(*(value[rows] for value in vars(self).values()))

    def where(self, chosen_S: BoolArray, other: "_Solved") -> "_Solved":
        """``other`` in the chosen fits, this in the rest."""
        return _Solved(
            *(
                np.where(chosen_S.reshape(-1, *[1] * (mine.ndim - 1)), theirs, mine)
                for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)
            )
        )


def _solve_terms(problem: PowerLaws, shape_S3: FloatArray, weights_SN: FloatArray) -> _Solved:
    alpha, beta, phi = (column[:, None] for column in shape_S3.T)
    log_recurrent = problem.log_rec_N + phi * problem.log_r_N
    log_n = np.logaddexp(problem.log_once_N, log_recurrent)
    slope = np.exp(log_recurrent - log_n) * problem.log_r_N  # d log N_eff / dφ
    centre_n, centre_d = log_n.mean(-1, keepdims=True), problem.log_tokens_N.mean()
    log_n_centred, log_d_centred = log_n - centre_n, problem.log_tokens_N - centre_d

    # Three terms over L and their derivatives by α, β, φ for a unit coefficient: (S, 6, N).
    columns = np.empty((len(shape_S3), 6, log_n.shape[1]))
    columns[:, 0] = np.exp(-problem.log_loss_N)
    columns[:, 1] = np.exp(-alpha * log_n_centred - problem.log_loss_N)
    columns[:, 2] = np.exp(-beta * log_d_centred - problem.log_loss_N)
    columns[:, 3] = -columns[:, 1] * log_n_centred
    columns[:, 4] = -columns[:, 2] * log_d_centred
    columns[:, 5] = -columns[:, 1] * alpha * slope
    weighted = columns * weights_SN[:, None]
    products = gram(weighted, columns)
    target = weighted.sum(-1)

    scale = products[:, :3, :3].diagonal(axis1=1, axis2=2) ** -0.5
    gram_terms = products[:, :3, :3] * scale[:, :, None] * scale[:, None, :] + 1e-12 * np.eye(3)
    coefficients, used = _nonnegative(gram_terms, target[:, :3] * scale)
    explained = (coefficients * target[:, :3] * scale).sum(-1)
    terms = coefficients * scale

    factor = terms[:, [1, 2, 1]]  # which term each of α, β, φ acts through
    cross = products[:, 3:, :3] * factor[:, :, None]
    gradient = (cross @ terms[:, :, None])[:, :, 0] - target[:, 3:] * factor
    reach = products[:, 3:, 3:] * factor[:, :, None] * factor[:, None, :]
    cross = cross * (scale * used)[:, None, :]
    inner = np.where(used[:, :, None] & used[:, None, :], gram_terms, np.eye(3))
    curvature = reach - cross @ np.linalg.solve(inner, cross.swapaxes(1, 2))

    with np.errstate(divide="ignore"):
        log_terms = np.log(terms)
    log_terms[:, 1] += (alpha * centre_n)[:, 0]
    log_terms[:, 2] += (beta * centre_d)[:, 0]
    return _Solved(
        shape_S3,
        np.concatenate([log_terms, shape_S3], axis=1),
        0.5 * np.maximum(weights_SN.sum(-1) - explained, 0.0),
        gradient,
        curvature,
        reach.diagonal(axis1=1, axis2=2) + 1e-12,
    )


def _nonnegative(gram_S33: FloatArray, target_S3: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Non-negative least squares for three unknowns, exact: the best of all feasible subsets."""
    best = np.full(len(gram_S33), np.inf)
    solution = np.zeros_like(target_S3)
    used = np.zeros(target_S3.shape, bool)
    for subset, mask in zip(SUBSETS, MASKS, strict=True):
        candidate = np.zeros_like(target_S3)
        block = gram_S33[:, subset][:, :, subset]
        candidate[:, subset] = np.linalg.solve(block, target_S3[:, subset, None])[:, :, 0]
        loss = -(candidate * target_S3).sum(-1)
        better = (candidate >= 0).all(-1) & (loss < best)
        best[better], solution[better] = loss[better], candidate[better]
        used[better] = mask
    return solution, used
