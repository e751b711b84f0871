"""The compute-optimal allocation is the true minimum, and its summaries mean what they say."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis import Runs, load_runs
from analysis.errors import NotIdentifiedError
from analysis.scaling.allocation import (
    allocate,
    equivalent_size,
    frontier_gap,
    growth,
    least_loss,
    optimal_allocation,
    with_draws,
)
from analysis.scaling.flops import architectures
from analysis.scaling.jackknife import jackknife
from analysis.tables.estimate import Draws, estimate
from tests.analysis import laptop_study
from tests.analysis.laptop_study import joint_law

PUBLISHED = Path(analysis.__file__).parent / "data/schwethelm2026_isodepth.csv"
LAW = laptop_study.TRUTH
BUDGETS = np.geomspace(1e11, 1e12, 7)


@pytest.fixture(scope="module")
def designs():
    return architectures(pd.DataFrame(laptop_study.study()))


@pytest.mark.parametrize("r", [1, 4])
@pytest.mark.parametrize("injection", ["once", "recurrent", "excluded"])
def test_no_width_is_better(designs, r, injection):
    best = optimal_allocation(LAW, designs[r], injection, BUDGETS)
    d = best.d_model[:, None] * np.linspace(0.5, 2, 2001)
    n_effective = designs[r].n_effective(LAW.phi, injection)(d)
    tokens = BUDGETS[:, None] / designs[r].flops_per_token(d)
    loss = LAW.predict(Runs.from_counts(n_effective, 0, r, tokens))
    assert (loss >= best.loss[:, None] - 1e-13).all()
    np.testing.assert_allclose(loss.min(axis=1), best.loss, rtol=1e-7)


def test_every_budget_is_spent_exactly(designs):
    best = optimal_allocation(LAW, designs[8], "once", BUDGETS)
    spent = designs[8].flops_per_token(best.d_model) * best.tokens
    np.testing.assert_allclose(spent, BUDGETS, rtol=1e-12)


def test_widths_beyond_the_runs_are_marked(designs):
    best = optimal_allocation(LAW, designs[1], "once", np.array([1e9, 3e11, 1e16]))
    assert best.extrapolated.tolist() == [True, False, True]


def test_resamples_at_once_equal_one_at_a_time(designs):
    laws = [LAW, joint_law(E=1.4, A=20.0, B=90.0, alpha=0.26, beta=0.34, phi=0.5)]
    table = pd.DataFrame([law.params for law in laws])
    both = least_loss(with_draws(LAW, Draws(table)), designs[4], "once", BUDGETS)
    for row, law in enumerate([LAW, *laws]):
        one = optimal_allocation(law, designs[4], "once", BUDGETS)
        np.testing.assert_allclose(both.d_model[row], one.d_model, rtol=1e-9)
        np.testing.assert_allclose(both.loss[row], one.loss, rtol=1e-12)


def test_a_law_without_an_optimum_is_refused(designs):
    flat = joint_law(E=1.5, A=0.0, B=80.0, alpha=0.28, beta=0.33, phi=0.5)
    with pytest.raises(NotIdentifiedError, match=r"r = 2: .*A = 0.* no compute-optimal width"):
        optimal_allocation(flat, designs[2], "once", BUDGETS)


def test_exponents_of_a_large_model_approach_the_closed_form(designs):
    """Where d² dominates, C = 6·N·D up to a factor, and a = β/(α+β), b = α/(α+β)."""
    law = with_draws(LAW, None)
    far = optimal_allocation(law, designs[1], "once", np.geomspace(1e22, 1e23, 5))
    slopes = growth(far, None)
    total = LAW.params["alpha"] + LAW.params["beta"]
    np.testing.assert_allclose(slopes.n_params.value, LAW.params["beta"] / total, rtol=1e-3)
    np.testing.assert_allclose(slopes.tokens.value, LAW.params["alpha"] / total, rtol=1e-3)
    np.testing.assert_allclose(slopes.total, 1, rtol=1e-3)


def test_exponents_carry_the_spread_of_the_resamples(designs):
    rng = np.random.default_rng(0)
    table = pd.DataFrame([LAW.params] * 50)
    table["beta"] += 0.01 * rng.standard_normal(50)
    draws = Draws(table)
    near = optimal_allocation(with_draws(LAW, draws), designs[1], "once", BUDGETS)
    slopes = growth(near, draws)
    wanted = np.std(table["beta"] / (table["beta"] + LAW.params["alpha"]), ddof=1)
    np.testing.assert_allclose(slopes.n_params.se, wanted, rtol=0.15)
    assert slopes.n_params.ci95[0] < slopes.n_params.value < slopes.n_params.ci95[1]
    assert slopes.total > 1  # FLOPs per token grow more slowly than N


def test_the_gap_is_zero_for_a_study_against_itself_and_positive_below_phi_one(designs):
    draws = Draws(pd.DataFrame([LAW.params, LAW.params | {"phi": 0.6}]))
    law = with_draws(LAW, draws)
    one, four = (optimal_allocation(law, designs[r], "once", BUDGETS) for r in (1, 4))
    np.testing.assert_array_equal(frontier_gap(one, one, None).gap, 0)
    gap = frontier_gap(four, one, draws)
    assert (gap.gap > 0).all()
    assert (gap.ci95[0] < gap.ci95[1]).all()
    assert (gap.ci95[1] > gap.gap).all()


def test_equivalent_sizes(designs):
    draws = Draws(pd.DataFrame([LAW.params | {"phi": phi} for phi in (0.0, 1.0)]))
    size = equivalent_size(with_draws(LAW, draws), designs[4], designs[1], "once", draws)
    units = laptop_study.LAYER * laptop_study.DEPTH
    once, rec, inject = 24, 24, 2
    np.testing.assert_allclose(size.unique, (once + rec + inject) / units)
    np.testing.assert_allclose(size.effective.value, (once + inject + 4**0.7 * rec) / units)
    low, high = size.effective.ci95
    assert (once + rec + inject) / units < low < high < (once + inject + 4 * rec) / units


def test_the_published_equivalent_size():
    """arXiv:2604.21106: at r = 4, 0.41 of the unique parameters act like 0.58."""
    runs = pd.read_csv(PUBLISHED)
    designs = architectures(runs)
    law = joint_law(E=1.5689, A=28.45, B=887.5, alpha=0.2003, beta=0.3669, phi=0.4576)
    size = equivalent_size(with_draws(law, None), designs[4], designs[1], "once", None)
    np.testing.assert_allclose(size.unique, 0.408, atol=1e-3)
    np.testing.assert_allclose(size.effective.value, 0.58, atol=0.01)


def test_draws_of_a_jackknife_have_its_interval():
    values = np.array([0.5, 0.6, 0.7])
    draws = Draws(pd.DataFrame({"phi": values}), jackknife=True)
    found = draws.estimate(0.61, values)
    se = np.sqrt(2 / 3 * ((values - 0.6) ** 2).sum())
    assert found.se == pytest.approx(se)
    assert found.ci95 == pytest.approx((0.61 - 4.3027 * se, 0.61 + 4.3027 * se), rel=1e-4)


def test_the_minimum_of_the_local_law_has_an_interval():
    path = Path(analysis.__file__).parent / "data/schwethelm2026_isodepth.csv"
    table = load_runs(path)
    fitted = analysis.fit(table, "local")
    result = allocate(table, fitted.fitted, jackknife(table.booked, fitted).draws)
    gap = result.gaps_at_budgets[-1]
    assert gap.r == 8
    assert (gap.ci95[0] < gap.gap).all()
    assert (gap.gap < gap.ci95[1]).all()


def test_resamples_without_a_value_are_left_out():
    spread = estimate(np.array([1.0, 0.9, np.nan, 1.1]))
    np.testing.assert_allclose(spread.se, np.std([0.9, 1.1], ddof=1))
    assert estimate(np.array([1.0, np.nan, 1.0])).ci95 is None
    assert estimate(np.array([1.0])).text() == "1.000"
