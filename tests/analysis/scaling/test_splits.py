from functools import partial

import numpy as np
import pytest

import analysis
from analysis import AnalysisError, NotIdentifiedError
from analysis.scaling.splits import (
    errors,
    fit_half,
    largest_budgets,
    leave_out,
    prediction_errors,
    split_by_budget,
)

FIT = partial(analysis.fit, starts=8)


def test_halves_of_the_published_runs(published):
    low, high = split_by_budget(published)
    assert (len(low), len(high)) == (56, 60)
    low, high = fit_half(low, FIT), fit_half(high, FIT)
    assert low.budgets[-1] == 2.15e18
    assert high.budgets[0] == 4.64e18
    assert low.fit.params["phi"] == pytest.approx(0.442, abs=0.001)
    assert high.fit.params["phi"] == pytest.approx(0.487, abs=0.001)


def test_middle_budget_goes_to_the_lower_half(published):
    low, high = split_by_budget(published.select(published.runs["budget"] < 2e19))
    assert low.runs["budget"].nunique() == 3
    assert high.runs["budget"].nunique() == 2


def test_three_budgets_have_no_halves(published):
    with pytest.raises(NotIdentifiedError, match=r"3 budget\(s\): halves need at least 4"):
        split_by_budget(published.select(published.runs["budget"] < 3e18))


def test_leaving_out_predicts_unseen_runs(published):
    left = leave_out(published, "budget", largest_budgets(published, 2), FIT)
    assert left.fit.n_runs == 80
    assert left.errors.n == 36
    assert left.fit.params["phi"] == pytest.approx(0.453, abs=0.005)
    assert left.fit.params["alpha"] == pytest.approx(0.266, abs=0.006)
    assert left.fit.r2 == pytest.approx(0.9959, abs=0.0003)
    assert left.errors.rmse > left.fit.rmse  # extrapolation is harder than description
    assert left.errors.rmse < 0.05
    unseen = published.select(published.runs["budget"] > 5e18)
    assert prediction_errors(left.fit, unseen) == left.errors


def test_leaving_out_a_recurrence_needs_two_others(published):
    two = published.select(published.runs["r"] <= 2)
    with pytest.raises(NotIdentifiedError, match="all 29 runs have r = 1"):
        leave_out(two, "r", (2.0,), FIT)


@pytest.mark.parametrize("n", [0, 6])
def test_holdout_leaves_at_least_one_budget(published, n):
    with pytest.raises(AnalysisError, match=f"holdout {n}: allowed is 1 to 5"):
        largest_budgets(published, n)


def test_errors_by_hand():
    part = errors(np.array([0.01, -0.03]))
    assert (part.n, part.mean, part.max_abs) == (2, pytest.approx(-0.01), 0.03)
    assert part.rmse == pytest.approx(np.sqrt((1e-4 + 9e-4) / 2))


def test_residual_table_of_the_published_runs(published):
    fit = analysis.fit(published, starts=8)
    paper = {1: (-0.001, 0.018, 0.009), 2: (0.004, 0.036, 0.011), 4: (-0.006, 0.023, 0.011)}
    paper[8] = (0.001, 0.029, 0.010)
    for r, (mean, largest, rmse) in paper.items():
        part = errors(fit.residuals[published.runs["r"] == r])
        assert part.mean == pytest.approx(mean, abs=0.002)
        assert part.max_abs == pytest.approx(largest, abs=0.002)
        assert part.rmse == pytest.approx(rmse, abs=0.002)
    assert fit.rmse == pytest.approx(0.010, abs=0.0005)
