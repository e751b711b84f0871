"""Intervals: their width, their coverage of a known truth, and resamples that do not count."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis import AnalysisError, NotIdentifiedError, bootstrap_fit
from analysis.laws.catalogue import LAWS
from analysis.laws.joint import JOINT
from analysis.laws.problem import Minima, Problem, Solver
from analysis.scaling.bootstrap import blocks, draw_blocks, refit
from tests.analysis import laptop_study
from tests.analysis.scaling.test_fit import TRUTH, with_losses


@pytest.fixture(scope="module")
def fit(published):
    return analysis.fit(published, starts=10)


def test_interval_of_the_published_runs(published, fit):
    cells = bootstrap_fit(published, fit, resamples=200)
    assert cells.n_blocks == 24
    assert cells.missed == cells.unidentified == 0
    low, high = cells.interval("phi")
    assert low == pytest.approx(0.41, abs=0.015)
    assert high == pytest.approx(0.51, abs=0.015)
    assert cells.standard_error("phi") == pytest.approx(0.024, abs=0.003)
    assert cells.warnings() == []


def test_single_runs_give_a_narrower_interval_here(published, fit):
    cells = bootstrap_fit(published, fit, resamples=100)
    runs = bootstrap_fit(published, fit, unit="run", resamples=100)
    assert runs.n_blocks == 116
    assert runs.standard_error("phi") < 0.8 * cells.standard_error("phi")
    assert runs.interval("phi") == pytest.approx((0.42, 0.49), abs=0.015)


def test_estimates_hold_every_parameter_of_every_resample(published, fit):
    result = bootstrap_fit(published, fit, resamples=30)
    assert list(result.estimates.columns) == ["phi", "alpha", "beta", "E", "A", "B"]
    assert len(result.estimates) == 30
    low, high = result.interval("A", level=0.5)
    assert low < result.estimates["A"].median() < high


def test_same_seed_same_resamples(published, fit):
    first, again = (bootstrap_fit(published, fit, resamples=20, seed=5) for _ in range(2))
    pd.testing.assert_frame_equal(first.estimates, again.estimates)
    other = bootstrap_fit(published, fit, resamples=20, seed=6)
    assert not np.allclose(first.estimates["phi"], other.estimates["phi"])


def test_held_phi_stays_held(published):
    fit = analysis.fit(published, phi=1.0, starts=20)
    result = bootstrap_fit(published, fit, resamples=20)
    assert (result.estimates["phi"] == 1.0).all()
    assert result.standard_error("alpha") > 0


def test_resamples_are_at_their_optimum(published, fit):
    """Against a search of the whole box with many starts."""
    problem = Problem.of(JOINT, published.booked)
    block_N, n_blocks = blocks(published.booked, "cell")
    rng = np.random.default_rng(0)
    counts = draw_blocks(n_blocks, "cell", 3, rng)
    result = refit(problem, fit.theta, counts, block_N, rng)
    for row, theta in zip(counts, result.theta_RP, strict=True):
        drawn = published.booked.iloc[np.repeat(np.arange(116), row[block_N])]
        searched = analysis.fit(drawn, starts=20)
        params = JOINT.params(theta)
        assert params["E"] == pytest.approx(searched.params["E"], rel=1e-5)
        assert params["phi"] == pytest.approx(searched.params["phi"], abs=1e-5)


@pytest.mark.parametrize(("unit", "n"), [("cell", 24), ("run", 116), ("budget", 6), ("r", 4)])
def test_blocks_of_each_unit(frame, unit, n):
    number, n_blocks = blocks(frame, unit)
    assert n_blocks == n
    assert sorted(set(number)) == list(range(n))
    if unit == "cell":
        assert frame.groupby(number)[["budget", "r"]].nunique().max().max() == 1


def test_unknown_unit(frame):
    with pytest.raises(AnalysisError, match="'week': choose one of cell, run, budget, r"):
        blocks(frame, "week")


def test_too_few_blocks_are_refused(published, fit):
    with pytest.raises(NotIdentifiedError, match="4 blocks of unit r are too few: at least 6"):
        bootstrap_fit(published, fit, unit="r")


def test_few_blocks_are_flagged(published, fit):
    result = bootstrap_fit(published, fit, unit="budget", resamples=20)
    assert result.warnings()[0].startswith("bootstrap: 6 blocks (budget) are few")


def test_too_few_resamples(published, fit):
    with pytest.raises(AnalysisError, match="bootstrap 1: at least 2 resamples"):
        bootstrap_fit(published, fit, resamples=1)


def test_resamples_of_one_r_are_left_out_and_counted(published):
    # Seven cells of r = 1 and one of r = 4: a third of all resamples never draw the latter.
    runs = published.runs
    keep = (runs["r"] == 1) | ((runs["r"] == 4) & (runs["budget"] < 5e17))
    table = published.select(keep)
    result = bootstrap_fit(table, analysis.fit(table, starts=10), resamples=100)
    assert 20 < result.unidentified < 50
    assert result.estimates["phi"].isna().sum() == result.unidentified + result.missed
    assert len(result.accepted) == 100 - result.unidentified - result.missed
    assert any("do not identify the law: left out" in line for line in result.warnings())


def test_a_best_start_that_stands_alone_is_not_accepted(published, fit, monkeypatch):
    def all_different(problem, exponents_SJ, weights_SN):
        n = len(exponents_SJ)
        return Minima(np.zeros((n, 6)), 1e-4 * (1 + np.arange(n)), np.ones(n, bool))

    law = dataclasses.replace(JOINT, solver=Solver(all_different, 1, 2))
    monkeypatch.setitem(LAWS, "joint", lambda _: law)
    with pytest.raises(NotIdentifiedError, match="only 0 of 20 resamples can be fitted"):
        bootstrap_fit(published, fit, resamples=20)


def test_a_resample_that_did_not_arrive_is_not_accepted(published, fit, monkeypatch):
    monkeypatch.setattr("analysis.laws.newton.MAX_STEPS", 0)
    with pytest.raises(NotIdentifiedError, match="only 0 of 20 resamples can be fitted"):
        bootstrap_fit(published, fit, resamples=20)


def test_resamples_at_the_edge_are_counted():
    frame = pd.DataFrame(laptop_study.study(noise=0.2, seed=1))
    result = bootstrap_fit(frame, analysis.fit(frame, starts=10), resamples=20)
    assert result.at_bounds
    assert any("at the edge of the box in" in line for line in result.warnings())


def coverage(frame: pd.DataFrame, replicates: int, resamples: int) -> float:
    """How often the 95 % interval holds the true φ; cells share a part of the noise."""
    block_N, n_blocks = blocks(frame, "cell")
    hits = 0
    for seed in range(replicates):
        shared = 0.002 * np.random.default_rng([seed, 1]).standard_normal(n_blocks)[block_N]
        replicate = with_losses(frame, TRUTH, noise=0.0035, seed=seed)
        replicate["loss"] *= np.exp(shared)
        fit = analysis.fit(replicate, starts=4)
        low, high = bootstrap_fit(replicate, fit, resamples=resamples, seed=seed).interval("phi")
        hits += low <= TRUTH.phi <= high
    return hits / replicates


def test_interval_covers_the_truth(frame):
    # At a true 95 %, fewer than 4 hits in 6 would happen once in 500 times.
    assert coverage(frame, replicates=6, resamples=40) >= 4 / 6


@pytest.mark.slow
def test_interval_covers_the_truth_in_95_percent(frame):
    assert coverage(frame, replicates=300, resamples=200) == pytest.approx(0.95, abs=0.04)
