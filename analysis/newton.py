"""Polish fits of the joint law: damped Newton steps in a box, many fits at once.

Minimises Σ w·Huber(log L̂ − log L) with analytic gradient and Hessian. Each fit has its own start,
weights and damping; those that have arrived no longer cost anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.laws import FloatArray
from analysis.problem import (
    ALPHA,
    BETA,
    LOG_A,
    LOG_B,
    LOG_E,
    NAMES,
    PHI,
    BoolArray,
    Problem,
    chunks,
)

MAX_STEPS = 200
#: A fit is at a minimum when a further step promises less than this share of its objective.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Minima:
    """Where S fits ended: parameters, Σ w·Huber, and whether each is at a minimum."""

    theta_SP: FloatArray
    objective_S: FloatArray
    converged_S: BoolArray

    def __getitem__(self, rows: list[int] | BoolArray) -> Minima:
        return Minima(self.theta_SP[rows], self.objective_S[rows], self.converged_S[rows])


def minimise(problem: Problem, theta_SP: FloatArray, weights_SN: FloatArray) -> Minima:
    """Polish S starts; ``weights_SN`` may have one row for all."""
    theta_SP = np.clip(theta_SP, problem.lower_P, problem.upper_P)
    n_fits, n_runs = len(theta_SP), len(problem.log_loss_N)
    shared = len(weights_SN) == 1
    objective_S = np.empty(n_fits)
    converged_S = np.empty(n_fits, bool)
    for rows in chunks(n_fits, n_runs):
        weights = weights_SN if shared else weights_SN[rows]
        theta_SP[rows], objective_S[rows], converged_S[rows] = _newton(
            problem, theta_SP[rows], weights
        )
    return Minima(theta_SP, objective_S, converged_S)


# --- the objective and its derivatives ---------------------------------------------------------


def residuals(problem: Problem, theta_SP: FloatArray) -> FloatArray:
    """log L̂ − log L, (S, N)."""
    return _Terms(problem, theta_SP).residual_SN


def objective(problem: Problem, theta_SP: FloatArray, weights_SN: FloatArray) -> FloatArray:
    """Σ w·Huber, (S,)."""
    return _huber_sum(residuals(problem, theta_SP), weights_SN, problem.delta)


def residual_jacobian(problem: Problem, theta_P: FloatArray) -> tuple[FloatArray, FloatArray]:
    """∂(log L̂)/∂θ (P, N) and log L̂ − log L (N,) of one fit."""
    terms = _Terms(problem, theta_P[None])
    return terms.jacobian()[0], terms.residual_SN[0]


def _huber_sum(residual_SN: FloatArray, weights_SN: FloatArray, delta: float) -> FloatArray:
    size = np.abs(residual_SN)
    inner = np.minimum(size, delta)
    return np.asarray((weights_SN * inner * (size - 0.5 * inner)).sum(-1))


class _Terms:
    """The three terms of the law by log-sum-exp, with what the derivatives need."""

    def __init__(self, problem: Problem, theta_SP: FloatArray) -> None:
        log_e, log_a, log_b, self.alpha, beta, phi = (column[:, None] for column in theta_SP.T)
        log_recurrent = problem.log_rec_N + phi * problem.log_r_N
        self.log_n = np.logaddexp(problem.log_once_N, log_recurrent)
        # d log N_eff / dφ is the recurrent share of N_eff times log r.
        self.share = np.exp(log_recurrent - self.log_n)
        z_capacity = log_a - self.alpha * self.log_n
        z_data = log_b - beta * problem.log_tokens_N
        top = np.maximum(np.maximum(log_e, z_capacity), z_data)
        self.p_floor = np.exp(log_e - top)
        self.p_capacity = np.exp(z_capacity - top)
        self.p_data = np.exp(z_data - top)
        total = self.p_floor + self.p_capacity + self.p_data
        self.p_floor /= total
        self.p_capacity /= total
        self.p_data /= total
        self.residual_SN = top + np.log(total) - problem.log_loss_N
        self.problem = problem

    def jacobian(self) -> FloatArray:
        """∂ρ/∂θ, (S, P, N)."""
        jac = np.empty((len(self.log_n), len(NAMES), self.log_n.shape[1]))
        jac[:, LOG_E] = self.p_floor
        jac[:, LOG_A] = self.p_capacity
        jac[:, LOG_B] = self.p_data
        jac[:, ALPHA] = -self.p_capacity * self.log_n
        jac[:, BETA] = -self.p_data * self.problem.log_tokens_N
        jac[:, PHI] = -self.p_capacity * self.alpha * self.share * self.problem.log_r_N
        return jac

    def derivatives(self, weights_SN: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gradient (S, P), exact Hessian (S, P, P) and its positive semidefinite majoriser.

        The majoriser weighs squared residuals by min(1, δ/|ρ|) and drops second derivatives of the
        law (iteratively reweighted Gauss–Newton); it is never indefinite but converges slowly.
        """
        delta, log_r, log_d = self.problem.delta, self.problem.log_r_N, self.problem.log_tokens_N
        slope = self.share * log_r
        jac = self.jacobian()
        jac_t = jac.swapaxes(1, 2)

        size = np.abs(self.residual_SN)
        inside = size <= delta
        psi = weights_SN * np.clip(self.residual_SN, -delta, delta)
        gradient = (jac @ psi[:, :, None])[:, :, 0]
        scale = weights_SN * delta / np.maximum(size, delta)
        majoriser = (jac * scale[:, None]) @ jac_t

        # Σ ψ·∇²ρ with ρ = logsumexp(z): Σ_k p_k (∇z_k ∇z_kᵀ + ∇²z_k) − ∇ρ ∇ρᵀ
        hessian = (jac * (weights_SN * inside - psi)[:, None]) @ jac_t
        hessian[:, LOG_E, LOG_E] += (psi * self.p_floor).sum(-1)
        mass = psi * self.p_data
        _add(hessian, LOG_B, LOG_B, mass.sum(-1))
        _add(hessian, LOG_B, BETA, -(mass @ log_d))
        _add(hessian, BETA, BETA, mass @ log_d**2)
        mass = psi * self.p_capacity
        by_n, by_slope = mass * self.log_n, mass * slope
        alpha = self.alpha[:, 0]
        _add(hessian, LOG_A, LOG_A, mass.sum(-1))
        _add(hessian, LOG_A, ALPHA, -by_n.sum(-1))
        _add(hessian, LOG_A, PHI, -alpha * by_slope.sum(-1))
        _add(hessian, ALPHA, ALPHA, (by_n * self.log_n).sum(-1))
        _add(hessian, ALPHA, PHI, alpha * (by_n * slope).sum(-1) - by_slope.sum(-1))
        bend = by_slope * (alpha[:, None] * slope - (1.0 - self.share) * log_r)
        _add(hessian, PHI, PHI, alpha * bend.sum(-1))
        return gradient, hessian, majoriser


def _add(matrix_SPP: FloatArray, i: int, j: int, value_S: FloatArray) -> None:
    matrix_SPP[:, i, j] += value_S
    if i != j:
        matrix_SPP[:, j, i] += value_S


# --- damped Newton in a box --------------------------------------------------------------------


def _newton(
    problem: Problem, theta_SP: FloatArray, weights_SN: FloatArray
) -> tuple[FloatArray, FloatArray, BoolArray]:
    n_fits = len(theta_SP)
    weights_SN = np.broadcast_to(weights_SN, (n_fits, weights_SN.shape[1]))
    terms = _Terms(problem, theta_SP)
    value = _huber_sum(terms.residual_SN, weights_SN, problem.delta)
    gradient, hessian, majoriser = terms.derivatives(weights_SN)
    centre = terms.log_n.mean(-1)
    damping = np.full(n_fits, 1e-3)
    theta = theta_SP.copy()
    converged = np.zeros(n_fits, bool)
    floor = 1e-24 * weights_SN.sum(-1)  # squared residuals at rounding level
    active = np.arange(n_fits)
    for _ in range(MAX_STEPS):
        step, promise = _step(
            problem,
            theta[active],
            gradient[active],
            hessian[active],
            majoriser[active],
            centre[active],
            damping[active],
        )
        done = (promise <= TOLERANCE * value[active] + floor[active]) | (damping[active] > 1e12)
        converged[active[done]] = promise[done] <= 1e-9 * value[active[done]] + floor[active[done]]
        active, step = active[~done], step[~done]
        if not len(active):
            break
        trial = np.clip(theta[active] + step, problem.lower_P, problem.upper_P)
        terms = _Terms(problem, trial)
        trial_value = _huber_sum(terms.residual_SN, weights_SN[active], problem.delta)
        better = trial_value < value[active]
        damping[active] *= np.where(better, 0.1, 8.0)
        moved = active[better]
        if len(moved):
            terms = terms if better.all() else _Terms(problem, trial[better])
            theta[moved], value[moved] = trial[better], trial_value[better]
            gradient[moved], hessian[moved], majoriser[moved] = terms.derivatives(weights_SN[moved])
            centre[moved] = terms.log_n.mean(-1)
    return theta, value, converged


def _step(
    problem: Problem,
    theta_SP: FloatArray,
    gradient_SP: FloatArray,
    hessian_SPP: FloatArray,
    majoriser_SPP: FloatArray,
    centre_S: FloatArray,
    damping_S: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """One step per fit that stays in the box, and the decrease its quadratic model promises."""
    metric = _metric(problem, majoriser_SPP, centre_S)
    at_lower = theta_SP <= problem.lower_P
    at_upper = theta_SP >= problem.upper_P
    frozen = (at_lower & (gradient_SP >= 0)) | (at_upper & (gradient_SP <= 0))
    damped = damping_S[:, None, None] * metric
    curvature = hessian_SPP + damped
    # Where the exact Hessian is not positive definite among the free parameters, use the majoriser.
    indefinite = np.linalg.eigvalsh(_scaled(_freeze(curvature, frozen)))[:, 0] <= 1e-13
    curvature[indefinite] = (majoriser_SPP + damped)[indefinite]
    for _ in range(len(NAMES)):
        masked = _freeze(curvature, frozen)
        free_gradient = np.where(frozen, 0.0, gradient_SP)
        step = -_solve(masked, free_gradient)
        outward = ~frozen & ((at_lower & (step < 0)) | (at_upper & (step > 0)))
        if not outward.any():
            break
        frozen = frozen | outward
    step[frozen] = 0.0
    promise = -0.5 * (free_gradient * step).sum(-1)
    # Shorten, not clip: a clipped step need not go downhill.
    room = np.where(step < 0, problem.lower_P - theta_SP, problem.upper_P - theta_SP)
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.where(step == 0, 1.0, room / step)
    return step * np.clip(fraction.min(-1), 0.0, 1.0)[:, None], promise


def _metric(problem: Problem, majoriser_SPP: FloatArray, centre_S: FloatArray) -> FloatArray:
    """Marquardt's diagonal, taken where log A and α (log B and β) are least correlated.

    That is at the middle of log N (log D): log A = a + α·centre. The diagonal is found in (a, …)
    and carried back, so the damping does not hinder moving along the valley of (A, α).
    """
    forward = np.tile(np.eye(6), (len(centre_S), 1, 1))
    forward[:, LOG_A, ALPHA] = centre_S
    forward[:, LOG_B, BETA] = problem.log_tokens_N.mean()
    centred = forward.swapaxes(1, 2) @ majoriser_SPP @ forward
    diagonal = np.maximum(np.einsum("spp->sp", centred), 1e-30)
    backward = 2 * np.eye(6) - forward  # the inverse of a shear
    return (backward.swapaxes(1, 2) * diagonal[:, None, :]) @ backward


def _freeze(matrix_SPP: FloatArray, frozen_SP: BoolArray) -> FloatArray:
    both = frozen_SP[:, :, None] | frozen_SP[:, None, :]
    return np.where(both, np.eye(6) * frozen_SP[:, None, :], matrix_SPP)


def _scaled(matrix_SPP: FloatArray) -> FloatArray:
    """The matrix with its diagonal scaled to one (signs kept)."""
    diagonal = np.maximum(np.abs(np.einsum("spp->sp", matrix_SPP)), 1e-300) ** -0.5
    return matrix_SPP * diagonal[:, :, None] * diagonal[:, None, :]


def _solve(matrix_SPP: FloatArray, vector_SP: FloatArray) -> FloatArray:
    diagonal = np.maximum(np.abs(np.einsum("spp->sp", matrix_SPP)), 1e-300) ** -0.5
    scaled = matrix_SPP * diagonal[:, :, None] * diagonal[:, None, :]
    return np.asarray(
        np.linalg.solve(scaled, (vector_SP * diagonal)[:, :, None])[:, :, 0] * diagonal
    )
