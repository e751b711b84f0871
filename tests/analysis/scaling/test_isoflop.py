"""Parabolas recover known vertices, refuse what has none, and their exponents carry errors."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.errors import InputError
from analysis.scaling.isoflop import exponents, fit_power_law, isoflop_curves

PUBLISHED = Path(analysis.__file__).parent / "data/schwethelm2026_isodepth.csv"


def cell(n_params, loss, budget=1e18, r=1.0, tokens_per_flop=6.0):
    n_params = np.asarray(n_params, float)
    return pd.DataFrame(
        {
            "run": [f"n{n:g}" for n in n_params],
            "budget": budget,
            "r": r,
            "n_once": 0.25 * n_params,
            "n_rec": 0.7 * n_params,
            "n_inject": 0.05 * n_params,
            "tokens": budget / (tokens_per_flop * n_params),
            "loss": loss,
        }
    )


def parabola(n_params, n_opt=1e8, loss_opt=2.5, curvature=0.05):
    return loss_opt + curvature * np.log(np.asarray(n_params) / n_opt) ** 2


def test_the_vertex_of_an_exact_parabola():
    n = np.array([3e7, 6e7, 1.1e8, 4e8])
    (curve,) = isoflop_curves(cell(n, parabola(n)))
    assert curve.refused is None
    np.testing.assert_allclose(curve.n_opt, 1e8, rtol=1e-9)
    np.testing.assert_allclose(curve.loss_opt, 2.5, rtol=1e-12)
    np.testing.assert_allclose(curve.tokens_opt, 1e18 / 6e8, rtol=1e-9)
    np.testing.assert_allclose(curve.predict(n), parabola(n), rtol=1e-12)
    np.testing.assert_allclose(curve.log_n_opt_se, 0, atol=1e-9)


def test_the_order_of_the_rows_does_not_matter():
    n = np.array([3e7, 6e7, 1.1e8, 4e8])
    frame = cell(n, parabola(n) + np.array([0.01, 0, -0.01, 0]))
    (straight,), (shuffled,) = isoflop_curves(frame), isoflop_curves(frame.iloc[[2, 0, 3, 1]])
    assert straight.n_opt == shuffled.n_opt
    assert straight.tokens_opt == shuffled.tokens_opt


def test_the_standard_error_of_the_vertex_matches_its_scatter():
    rng = np.random.default_rng(0)
    n = np.geomspace(6e7, 1.5e9, 8)  # a vertex far from the middle: both terms of the error count
    fits = [
        isoflop_curves(cell(n, parabola(n) + 1e-3 * rng.standard_normal(len(n))))[0]
        for _ in range(400)
    ]
    scatter = np.std([np.log(fit.n_opt) for fit in fits])
    stated = np.sqrt(np.mean([fit.log_n_opt_se**2 for fit in fits]))
    assert 0.85 < stated / scatter < 1.15


def test_three_runs_give_a_vertex_but_no_standard_error():
    n = np.array([3e7, 9e7, 4e8])
    (curve,) = isoflop_curves(cell(n, parabola(n)))
    np.testing.assert_allclose(curve.n_opt, 1e8, rtol=1e-9)
    assert np.isnan(curve.log_n_opt_se)


@pytest.mark.parametrize(
    ("n_params", "loss", "reason"),
    [
        ([3e7, 9e7], [2.5, 2.4], "2 model sizes; a parabola needs at least 3"),
        ([3e7, 3e7, 9e7], [2.5, 2.51, 2.4], "2 model sizes; a parabola needs at least 3"),
        ([3e7, 9e7, 3e8], [2.4, 2.5, 2.4], "the parabola opens downwards: no minimum"),
        (
            [2e8, 4e8, 8e8],
            parabola([2e8, 4e8, 8e8]),
            "the vertex, N = 1e+08, lies below the smallest model, N = 2e+08",
        ),
        (
            [2e7, 4e7, 8e7],
            parabola([2e7, 4e7, 8e7]),
            "the vertex, N = 1e+08, lies above the largest model, N = 8e+07",
        ),
    ],
)
def test_refused_curves_say_why_and_have_no_vertex(n_params, loss, reason):
    (curve,) = isoflop_curves(cell(n_params, loss))
    assert curve.refused == reason
    assert np.isnan([curve.n_opt, curve.tokens_opt, curve.loss_opt]).all()


def test_exponents_of_vertices_that_follow_a_power_law():
    cells = []
    for r in (1.0, 4.0):
        for budget in (1e17, 1e18, 1e19, 1e20):
            n_opt = 1e8 * (budget / 1e18) ** 0.55
            n = n_opt * np.array([0.4, 0.8, 1.5, 3.0])
            cells.append(cell(n, parabola(n, n_opt), budget, r))
    for growth in exponents(isoflop_curves(pd.concat(cells))):
        np.testing.assert_allclose(growth.n_params.exponent, 0.55, rtol=1e-9)
        np.testing.assert_allclose(growth.tokens.exponent, 0.45, rtol=1e-9)
        np.testing.assert_allclose(growth.total, 1, rtol=1e-9)
        np.testing.assert_allclose(growth.n_params.predict(1e18), 1e8, rtol=1e-9)


def test_a_refused_budget_does_not_count_towards_an_exponent():
    n = np.array([3e7, 9e7, 4e8])
    frame = pd.concat(
        [cell(n, parabola(n), 1e17), cell(n, parabola(n), 1e18), cell(n, -parabola(n) + 9, 1e19)]
    )
    (growth,) = exponents(isoflop_curves(frame))
    assert growth.n_params is None
    assert growth.total is None
    assert growth.refused == ("r = 1: 2 budgets with a usable vertex; an exponent needs at least 3")


def test_the_interval_of_an_exponent_covers_at_its_level():
    rng = np.random.default_rng(1)
    budgets = np.geomspace(1e17, 1e19, 4)
    covered = 0
    for _ in range(600):
        fit = fit_power_law(budgets, budgets**0.5 * np.exp(0.05 * rng.standard_normal(4)))
        covered += fit.ci95[0] <= 0.5 <= fit.ci95[1]
    assert 0.925 < covered / 600 < 0.975


def test_two_budgets_are_refused():
    with pytest.raises(InputError, match="2 budgets; an exponent needs at least 3"):
        fit_power_law(np.array([1e17, 1e18]), np.array([1.0, 2.0]))


@pytest.mark.parametrize(("r", "low", "high"), [(2, 0.03, 0.06), (4, 0.05, 0.08), (8, 0.09, 0.12)])
def test_the_published_gaps_between_vertices(r, low, high):
    """arXiv:2604.21106: the range over budgets of the compute-optimal loss gap to r = 1."""
    curves = isoflop_curves(pd.read_csv(PUBLISHED))
    loss = {(curve.r, curve.budget): curve.loss_opt for curve in curves}
    gaps = [loss[r, curve.budget] - curve.loss_opt for curve in curves if curve.r == 1]
    assert len(gaps) == 6
    np.testing.assert_allclose([min(gaps), max(gaps)], [low, high], atol=0.006)
