"""Derivatives against finite differences, and what a minimum in a box must satisfy."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.laws import newton
from analysis.laws.counting import book_injection
from analysis.laws.joint import JOINT
from analysis.laws.newton import minimise
from analysis.laws.power_laws import ALPHA, LOG_B, LOG_E, PHI, PowerLaws
from analysis.laws.problem import Problem
from analysis.laws.projection import project

OPTIMUM = np.array([0.45, 3.35, 6.79, 0.2, 0.367, 0.458])


def power_laws(counted) -> PowerLaws:
    return PowerLaws.of(Problem.of(JOINT, counted))


def held(problem: PowerLaws, values: dict[int, float]) -> PowerLaws:
    lower, upper = problem.lower_P.copy(), problem.upper_P.copy()
    for i, value in values.items():
        lower[i] = upper[i] = value
    return replace(problem, lower_P=lower, upper_P=upper)


def random_shapes(problem: PowerLaws, n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.uniform(problem.lower_P[ALPHA:], problem.upper_P[ALPHA:], (n, 3))


def residuals(problem: PowerLaws, theta_SP):
    return newton._Terms.at(problem, theta_SP).residual_SN


def objective(problem: PowerLaws, theta_SP, weights_SN):
    return newton._huber_sum(residuals(problem, theta_SP), weights_SN, problem.delta)


@pytest.fixture(scope="module")
def problem(published) -> PowerLaws:
    return power_laws(published.booked)


@pytest.fixture(scope="module")
def ones(published):
    return np.ones((1, len(published)))


def central_difference(function, theta, step=1e-6):
    columns = []
    for i in range(len(theta)):
        shift = np.zeros_like(theta)
        shift[i] = step
        columns.append((function(theta + shift) - function(theta - shift)) / (2 * step))
    return np.stack(columns)


def test_jacobian_and_gradient(problem):
    weights = np.random.default_rng(0).uniform(0.5, 2.0, (1, 116))
    jacobian = newton._Terms.at(problem, OPTIMUM[None]).jacobian(problem)[0]
    expected = central_difference(lambda theta: residuals(problem, theta[None])[0], OPTIMUM)
    np.testing.assert_allclose(jacobian, expected, rtol=1e-6, atol=1e-9)
    terms = newton._Terms.at(problem, OPTIMUM[None])
    gradient, _, _ = terms.derivatives(problem, weights)
    expected = central_difference(
        lambda theta: objective(problem, theta[None], weights)[0], OPTIMUM
    )
    np.testing.assert_allclose(gradient[0], expected, rtol=1e-5, atol=1e-9)


def test_hessian(problem):
    weights = np.random.default_rng(1).uniform(0.5, 2.0, (1, 116))

    def gradient(theta):
        return newton._Terms.at(problem, theta[None]).derivatives(problem, weights)[0][0]

    _, hessian, majoriser = newton._Terms.at(problem, OPTIMUM[None]).derivatives(problem, weights)
    np.testing.assert_allclose(hessian[0], central_difference(gradient, OPTIMUM, 1e-8), rtol=2e-4)
    assert np.linalg.eigvalsh(majoriser[0])[0] > 0


def test_gradient_vanishes_at_the_minimum(problem, ones):
    end = minimise(problem, OPTIMUM[None], ones)
    assert end.converged_S.all()
    gradient = newton._Terms.at(problem, end.theta_SP).derivatives(problem, ones)[0][0]
    start = newton._Terms.at(problem, OPTIMUM[None]).derivatives(problem, ones)[0][0]
    assert np.abs(gradient).max() < 1e-6 * np.abs(start).max()


def test_weight_two_is_a_run_counted_twice(published, problem, ones):
    weights = ones.copy()
    weights[0, 10:30] = 2.0
    weights[0, 50:60] = 0.0
    rows = np.repeat(np.arange(116), weights[0].astype(int))
    repeated = power_laws(published.booked.iloc[rows])
    weighted = minimise(problem, OPTIMUM[None], weights)
    doubled = minimise(repeated, OPTIMUM[None], np.ones((1, len(rows))))
    np.testing.assert_allclose(weighted.objective_S, doubled.objective_S, rtol=1e-10)
    np.testing.assert_allclose(weighted.theta_SP, doubled.theta_SP, rtol=1e-5)


def test_fits_do_not_depend_on_their_neighbours(problem, ones, monkeypatch):
    shapes = random_shapes(problem, 12, 0)
    together = minimise(problem, project(problem, shapes, ones), ones)
    monkeypatch.setattr("analysis.laws.power_laws.CHUNK", 116)  # one fit at a time
    alone = minimise(problem, project(problem, shapes, ones), ones)
    np.testing.assert_allclose(alone.objective_S, together.objective_S, rtol=1e-9)


def test_a_minimum_at_the_edge_of_the_box_is_found(published, ones):
    # E = e² is far above what these losses leave room for: the minimum lies on that face.
    booked = published.booked.assign(loss=published.runs["loss"] + 6.0)
    problem = power_laws(booked)
    shapes = random_shapes(problem, 40, 0)
    ends = minimise(problem, project(problem, shapes, ones), ones)
    best = ends.objective_S.argmin()
    assert ends.theta_SP[best, LOG_E] == 2.0
    assert ends.converged_S[best]
    gradient = newton._Terms.at(problem, ends.theta_SP[[best]]).derivatives(problem, ones)[0][0]
    inside = (ends.theta_SP[best] > problem.lower_P) & (ends.theta_SP[best] < problem.upper_P)
    assert gradient[LOG_E] < 0  # it would go on if it could
    assert np.abs(gradient[inside]).max() < 1e-6 * abs(gradient[LOG_E])


def test_fixed_parameters_do_not_move(problem, ones):
    end = minimise(held(problem, {PHI: 0.3, LOG_B: 6.0}), OPTIMUM[None], ones)
    assert end.theta_SP[0, PHI] == 0.3
    assert end.theta_SP[0, LOG_B] == 6.0
    assert end.converged_S.all()


def test_vanished_term_is_no_error(problem, ones):
    start = np.array([[0.9, -5.0, 6.0, 2.5, 0.4, 0.5]])  # A·N^−α is 1e-22 here
    end = minimise(problem, start, ones)
    assert np.isfinite(end.theta_SP).all()


def test_projection_solves_the_linear_part_exactly(published, problem, ones):
    law_shape = OPTIMUM[ALPHA:]
    booked = book_injection(published.runs, "once")
    n = booked["n_once"] + booked["r"] ** law_shape[2] * booked["n_rec"]
    columns = np.stack([n**0, n ** -law_shape[0], booked["tokens"] ** -law_shape[1]], axis=1)
    loss = published.runs["loss"].to_numpy()[:, None]
    expected = np.linalg.lstsq(columns / loss, np.ones(116), rcond=None)[0]
    fixed = held(problem, {ALPHA + i: value for i, value in enumerate(law_shape)})
    theta = project(fixed, law_shape[None], ones)
    np.testing.assert_allclose(np.exp(theta[0, :3]), expected, rtol=1e-6)


def test_projection_never_returns_negative_terms(problem, ones):
    shapes = random_shapes(problem, 300, 3)
    theta = project(problem, shapes, ones)
    assert (theta >= problem.lower_P).all()
    assert (theta <= problem.upper_P).all()
