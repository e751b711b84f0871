"""Polish fits of the joint law: damped Newton steps in a box, many fits at once.

Minimises Σ w·Huber(log L̂ − log L) with analytic gradient and Hessian. Each fit has its own start,
weights and damping; those that have arrived no longer cost anything.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from analysis.laws.counting import BoolArray, FloatArray
from analysis.laws.power_laws import (
    ALPHA,
    BETA,
    LOG_A,
    LOG_B,
    LOG_E,
    NAMES,
    PHI,
    PowerLaws,
    chunks,
    gram,
)
from analysis.laws.problem import Minima

MAX_STEPS = 1000
#: Stop when a further step promises less than this share of the objective.
TOLERANCE = 1e-14
#: A fit is at a minimum when an undamped step on the majoriser promises less than this share.
CONVERGED = 1e-9
MIN_DAMPING = 1e-12


def minimise(problem: PowerLaws, theta_SP: FloatArray, weights_SN: FloatArray) -> Minima:
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


def _huber_sum(residual_SN: FloatArray, weights_SN: FloatArray, delta: float) -> FloatArray:
    size = np.abs(residual_SN)
    inner = np.minimum(size, delta)
    return np.asarray((weights_SN * inner * (size - 0.5 * inner)).sum(-1))


@dataclass(frozen=True)
class _Rows:
    """Arrays over S fits that are picked and replaced together."""

    def __getitem__(self, rows: NDArray[np.intp] | BoolArray) -> Self:
        return type(self)(*(value[rows] for value in vars(self).values()))

    def replace(self, rows: NDArray[np.intp] | BoolArray, other: Self) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[rows] = theirs


@dataclass(frozen=True)
class _Terms(_Rows):
    """The law at S points: log L̂ − log L, and what its derivatives need.

    ``floor``, ``capacity`` and ``data`` are the three terms' shares of L̂; ``recurrent`` is the
    share of the block in N_eff, which is d log N_eff / dφ over log r.
    """

    residual_SN: FloatArray
    log_n_SN: FloatArray
    recurrent_SN: FloatArray
    floor_SN: FloatArray
    capacity_SN: FloatArray
    data_SN: FloatArray
    alpha_S: FloatArray

    @staticmethod
    def at(problem: PowerLaws, theta_SP: FloatArray) -> "_Terms":
        log_e, log_a, log_b, alpha, beta, phi = (column[:, None] for column in theta_SP.T)
        log_recurrent = problem.log_rec_N + phi * problem.log_r_N
        log_n = np.logaddexp(problem.log_once_N, log_recurrent)
        z_capacity = log_a - alpha * log_n
        z_data = log_b - beta * problem.log_tokens_N
        top = np.maximum(np.maximum(log_e, z_capacity), z_data)
        floor, capacity, data = (np.exp(z - top) for z in (log_e, z_capacity, z_data))
        total = floor + capacity + data
        return _Terms(
            top + np.log(total) - problem.log_loss_N,
            log_n,
            np.exp(log_recurrent - log_n),
            floor / total,
            capacity / total,
            data / total,
            theta_SP[:, ALPHA],
        )

    def jacobian(self, problem: PowerLaws) -> FloatArray:
        """∂ρ/∂θ, (S, P, N)."""
        jac = np.empty((len(self.alpha_S), len(NAMES), self.log_n_SN.shape[1]))
        jac[:, LOG_E] = self.floor_SN
        jac[:, LOG_A] = self.capacity_SN
        jac[:, LOG_B] = self.data_SN
        jac[:, ALPHA] = -self.capacity_SN * self.log_n_SN
        jac[:, BETA] = -self.data_SN * problem.log_tokens_N
        jac[:, PHI] = -self.capacity_SN * self.alpha_S[:, None] * self.recurrent_SN
        jac[:, PHI] *= problem.log_r_N
        return jac

    def derivatives(
        self, problem: PowerLaws, weights_SN: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gradient (S, P), exact Hessian (S, P, P) and its positive semidefinite majoriser.

        The majoriser weighs squared residuals by min(1, δ/|ρ|) and drops second derivatives of the
        law (iteratively reweighted Gauss–Newton); it is never indefinite but converges slowly.
        """
        delta, log_d = problem.delta, problem.log_tokens_N
        jac = self.jacobian(problem)
        size = np.abs(self.residual_SN)
        psi = weights_SN * np.clip(self.residual_SN, -delta, delta)
        gradient = np.einsum("spn,sn->sp", jac, psi)
        scale = weights_SN * delta / np.maximum(size, delta)
        majoriser = gram(jac * scale[:, None], jac)

        # Σ ψ·∇²ρ with ρ = logsumexp(z): Σ_k p_k (∇z_k ∇z_kᵀ + ∇²z_k) − ∇ρ ∇ρᵀ
        hessian = gram(jac * (weights_SN * (size <= delta) - psi)[:, None], jac)
        hessian[:, LOG_E, LOG_E] += (psi * self.floor_SN).sum(-1)
        mass = psi * self.data_SN
        _add(hessian, LOG_B, LOG_B, mass.sum(-1))
        _add(hessian, LOG_B, BETA, -(mass * log_d).sum(-1))
        _add(hessian, BETA, BETA, (mass * log_d**2).sum(-1))
        mass = psi * self.capacity_SN
        slope = self.recurrent_SN * problem.log_r_N
        by_n, by_slope = mass * self.log_n_SN, mass * slope
        alpha = self.alpha_S
        _add(hessian, LOG_A, LOG_A, mass.sum(-1))
        _add(hessian, LOG_A, ALPHA, -by_n.sum(-1))
        _add(hessian, LOG_A, PHI, -alpha * by_slope.sum(-1))
        _add(hessian, ALPHA, ALPHA, (by_n * self.log_n_SN).sum(-1))
        _add(hessian, ALPHA, PHI, alpha * (by_n * slope).sum(-1) - by_slope.sum(-1))
        bend = by_slope * (alpha[:, None] * slope - (1.0 - self.recurrent_SN) * problem.log_r_N)
        _add(hessian, PHI, PHI, alpha * bend.sum(-1))
        return gradient, hessian, majoriser


def _add(matrix_SPP: FloatArray, i: int, j: int, value_S: FloatArray) -> None:
    matrix_SPP[:, i, j] += value_S
    if i != j:
        matrix_SPP[:, j, i] += value_S


# --- damped Newton in a box --------------------------------------------------------------------


def _newton(
    problem: PowerLaws, theta_SP: FloatArray, weights_SN: FloatArray
) -> tuple[FloatArray, FloatArray, BoolArray]:
    n_fits = len(theta_SP)
    weights_SN = np.broadcast_to(weights_SN, (n_fits, weights_SN.shape[1]))
    terms = _Terms.at(problem, theta_SP)
    at = _Point.at(problem, theta_SP.copy(), terms, weights_SN)
    damping = np.full(n_fits, 1e-3)
    active = np.arange(n_fits)
    for _ in range(MAX_STEPS):
        here, weights = at[active], weights_SN[active]
        step = _damped_step(problem, here, damping[active])
        done = step.promise_S <= TOLERANCE * here.value_S + _rounding(weights)
        if done.all():
            break
        active, here, weights, step = active[~done], here[~done], weights[~done], step[~done]

        trial_SP = np.clip(here.theta_SP + step.step_SP, problem.lower_P, problem.upper_P)
        trial = _Terms.at(problem, trial_SP)
        better = _huber_sum(trial.residual_SN, weights, problem.delta) < here.value_S
        factor = np.where(better, 0.1, 8.0)
        if not better.all():
            worse = np.flatnonzero(~better)
            trial_SP[worse] = _corrected(
                problem,
                here[worse],
                step[worse],
                terms[active[worse]],
                trial[worse],
                weights[worse],
            )
            bent = _Terms.at(problem, trial_SP[worse])
            value = _huber_sum(bent.residual_SN, weights[worse], problem.delta)
            better[worse] = value < here.value_S[worse]
            factor[worse] = np.where(better[worse], 1.0, 8.0)
            trial.replace(worse, bent)
        damping[active] = np.maximum(damping[active] * factor, MIN_DAMPING)
        moved = active[better]
        terms.replace(moved, trial[better])
        at.replace(moved, _Point.at(problem, trial_SP[better], trial[better], weights[better]))
    # A step promises little also where the damping is high, so the verdict is taken without it.
    curvature_SPP = at.majoriser_SPP + MIN_DAMPING * _metric(problem, at)
    promise_S = _solve_in_box(problem, at, curvature_SPP).promise_S
    return at.theta_SP, at.value_S, promise_S <= CONVERGED * at.value_S + _rounding(weights_SN)


def _rounding(weights_SN: FloatArray) -> FloatArray:
    """Half squares of residuals that are no more than rounding errors of log L."""
    return np.asarray(1e-24 * weights_SN.sum(-1))


@dataclass(frozen=True)
class _Point(_Rows):
    """Where fits stand: objective, derivatives, and the middle of log N_eff."""

    theta_SP: FloatArray
    value_S: FloatArray
    gradient_SP: FloatArray
    hessian_SPP: FloatArray
    majoriser_SPP: FloatArray
    centre_S: FloatArray

    @staticmethod
    def at(
        problem: PowerLaws, theta_SP: FloatArray, terms: _Terms, weights_SN: FloatArray
    ) -> "_Point":
        return _Point(
            theta_SP,
            _huber_sum(terms.residual_SN, weights_SN, problem.delta),
            *terms.derivatives(problem, weights_SN),
            terms.log_n_SN.mean(-1),
        )


@dataclass(frozen=True)
class _Step(_Rows):
    """A step inside the box, the decrease its quadratic model promises, and that model."""

    step_SP: FloatArray
    promise_S: FloatArray
    curvature_SPP: FloatArray
    frozen_SP: BoolArray


def _damped_step(problem: PowerLaws, here: _Point, damping_S: FloatArray) -> _Step:
    damped = damping_S[:, None, None] * _metric(problem, here)
    curvature = here.hessian_SPP + damped
    # Where the exact Hessian is not positive definite among the free parameters, use the majoriser.
    frozen = _pushed_outward(problem, here)
    indefinite = np.linalg.eigvalsh(_scaled(_freeze(curvature, frozen)))[:, 0] <= 1e-13
    curvature[indefinite] = (here.majoriser_SPP + damped)[indefinite]
    return _solve_in_box(problem, here, curvature)


def _pushed_outward(problem: PowerLaws, here: _Point) -> BoolArray:
    """Parameters at an edge of the box that the gradient holds there."""
    at_lower, at_upper = here.theta_SP <= problem.lower_P, here.theta_SP >= problem.upper_P
    return (at_lower & (here.gradient_SP >= 0)) | (at_upper & (here.gradient_SP <= 0))


def _solve_in_box(problem: PowerLaws, here: _Point, curvature_SPP: FloatArray) -> _Step:
    theta_SP, gradient_SP = here.theta_SP, here.gradient_SP
    at_lower, at_upper = theta_SP <= problem.lower_P, theta_SP >= problem.upper_P
    frozen = _pushed_outward(problem, here)
    while True:
        masked = _freeze(curvature_SPP, frozen)
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
    step *= np.clip(fraction.min(-1), 0.0, 1.0)[:, None]
    return _Step(step, promise, masked, frozen)


def _corrected(
    problem: PowerLaws,
    here: _Point,
    step: _Step,
    terms: _Terms,
    trial: _Terms,
    weights_SN: FloatArray,
) -> FloatArray:
    """Bend a failed step along the curved valley (second-order correction).

    Runs within ±δ hold the fit in a narrow valley; a straight step leaves it by the curvature of
    their residuals. The correction takes that part back, in the step's own model.
    """
    jac_SPN = terms.jacobian(problem)
    straight_SN = terms.residual_SN + np.einsum("sp,spn->sn", step.step_SP, jac_SPN)
    held_SN = weights_SN * (np.abs(terms.residual_SN) <= problem.delta)
    left_SN = held_SN * (trial.residual_SN - straight_SN)
    pull_SP = np.einsum("spn,sn->sp", jac_SPN, left_SN)
    bend_SP = -_solve(step.curvature_SPP, np.where(step.frozen_SP, 0.0, pull_SP))
    return np.clip(here.theta_SP + step.step_SP + bend_SP, problem.lower_P, problem.upper_P)


def _metric(problem: PowerLaws, here: _Point) -> FloatArray:
    """Marquardt's diagonal, taken where log A and α (log B and β) are least correlated.

    That is at the middle of log N (log D): log A = a + α·centre. The diagonal is found in (a, …)
    and carried back, so the damping does not hinder moving along the valley of (A, α).
    """
    forward = np.tile(np.eye(6), (len(here.centre_S), 1, 1))
    forward[:, LOG_A, ALPHA] = here.centre_S
    forward[:, LOG_B, BETA] = problem.log_tokens_N.mean()
    centred = forward.swapaxes(1, 2) @ here.majoriser_SPP @ forward
    diagonal = np.einsum("spp->sp", centred)
    # A term that has vanished bends nothing; it still needs a scale to divide by.
    diagonal = np.maximum(diagonal, 1e-10 * diagonal.max(-1, keepdims=True) + 1e-290)
    backward = 2 * np.eye(6) - forward  # the inverse of a shear
    return (backward.swapaxes(1, 2) * diagonal[:, None, :]) @ backward


def _freeze(matrix_SPP: FloatArray, frozen_SP: BoolArray) -> FloatArray:
    both = frozen_SP[:, :, None] | frozen_SP[:, None, :]
    return np.where(both, np.eye(6) * frozen_SP[:, None, :], matrix_SPP)


def _scaled(matrix_SPP: FloatArray) -> FloatArray:
    """The matrix with its diagonal scaled to one (signs kept)."""
    diagonal = _scale(matrix_SPP)
    return matrix_SPP * diagonal[:, :, None] * diagonal[:, None, :]


def _scale(matrix_SPP: FloatArray) -> FloatArray:
    return np.maximum(np.abs(np.einsum("spp->sp", matrix_SPP)), 1e-300) ** -0.5


def _solve(matrix_SPP: FloatArray, vector_SP: FloatArray) -> FloatArray:
    diagonal = _scale(matrix_SPP)
    solved = np.linalg.solve(_scaled(matrix_SPP), (vector_SP * diagonal)[:, :, None])
    return np.asarray(solved[:, :, 0] * diagonal)
