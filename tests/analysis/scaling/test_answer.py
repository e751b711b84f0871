"""The local law, its interval, and the rule which law answers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis import NotIdentifiedError, RunTable, Settings, book_injection, fit_study
from analysis.laws.local import local
from analysis.laws.problem import Problem
from analysis.scaling.answer import Answer, choose, in_words
from analysis.scaling.jackknife import jackknife
from analysis.scaling.local_study import study_locally
from tests.analysis import laptop_study


def table(runs: list[dict]) -> RunTable:
    return RunTable(pd.DataFrame(runs), "once", Path("synthetic"), "0" * 64)


@pytest.fixture(scope="module")
def small() -> RunTable:
    return table(laptop_study.study(noise=0.012, seed=3))


@pytest.fixture(scope="module")
def studied(small):
    return study_locally(small)


def test_an_additive_table_without_noise_is_hardly_biased():
    law = laptop_study.joint_law(**laptop_study.TRUTH.params | {"phi": 0.6})
    fitted = analysis.fit(table(laptop_study.study(noise=0.0, law=law)), "local")
    assert fitted.phi == pytest.approx(0.6, abs=0.005)


def test_it_is_the_least_squares_fit_of_every_weighting(small):
    """Against a search of φ over the same surface by brute force."""
    counted = small.booked
    law = local(counted)
    problem = Problem.of(law, counted)
    weights = np.random.default_rng(0).integers(0, 3, (3, 36)).astype(float)
    ends = law.solver.solve(problem, np.zeros((3, 1)), weights)

    def squares(phi, w):
        columns = law.columns({"phi": phi}, problem.runs)
        X = np.stack([np.broadcast_to(c, 36) for c in columns], axis=1) * np.sqrt(w)[:, None]
        y = problem.loss_N * np.sqrt(w)
        return ((y - X @ np.linalg.lstsq(X, y, rcond=None)[0]) ** 2).sum()

    for theta, objective, w in zip(ends.theta_SP, ends.objective_S, weights, strict=True):
        phi = law.params(theta)["phi"]
        assert objective == pytest.approx(0.5 * squares(phi, w), rel=1e-9)
        near = [squares(phi + step, w) for step in np.linspace(-0.5, 0.5, 101)]
        assert 2 * objective <= min(near) * (1 + 1e-6)


def test_the_interval_is_that_of_the_jackknife(small, studied):
    without = []
    for _, cell in small.runs.groupby(["budget", "r"]):
        rest = small.runs.drop(cell.index)
        without.append(analysis.fit(rest, "local").phi)
    np.testing.assert_allclose(studied.cells.params["phi"], without, atol=2e-5)
    se = np.sqrt(11 / 12 * ((without - np.mean(without)) ** 2).sum())
    assert studied.estimate.se == pytest.approx(se, rel=1e-3)
    low, high = studied.estimate.ci95
    assert high - low == pytest.approx(2 * 2.201 * se, rel=1e-3)
    assert low < laptop_study.TRUTH.phi < high


def test_predictions_of_left_out_cells_have_not_seen_them(small):
    counted = small.booked
    fitted = analysis.fit(counted, starts=10)
    left_out = jackknife(counted, fitted)
    spoiled = counted.copy()
    last = (counted["budget"] == 1e12) & (counted["r"] == 8)
    spoiled.loc[last, "loss"] += 0.5
    again = jackknife(spoiled, analysis.fit(spoiled, starts=10))
    np.testing.assert_allclose(left_out.predictions[last], again.predictions[last], rtol=1e-6)
    assert again.left_out_rmse > 3 * left_out.left_out_rmse


def test_a_free_worth_per_r_finds_the_law_s(small):
    exact = study_locally(table(laptop_study.study(noise=0.0)))
    for worth in exact.worth_per_r.values():
        assert worth == pytest.approx(0.7, abs=0.02)
    assert list(exact.worth_per_r) == [2, 4, 8]


def test_embeddings_are_counted_where_the_table_tells_them(small, studied):
    assert studied.embeddings is None
    matrices = small.runs[["n_once", "n_rec", "n_inject"]].sum(axis=1)
    told = replace(small, runs=small.runs.assign(n_total=matrices + 1024 * small.runs["d_model"]))
    assert study_locally(told).embeddings not in (None, studied.phi)


def test_the_head_is_counted_where_the_table_tells_it(published, studied):
    assert studied.head is None
    told = replace(published, runs=published.runs.assign(vocab_size=32_064))
    assert study_locally(told).head == pytest.approx(0.361, abs=0.001)


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        (lambda t: t.index < 11, "11 runs; it needs at least 12"),
        (lambda t: t["r"] == 2, "9 runs; it needs at least 12"),
        (lambda t: t["d_model"].isin((24,)), "12 runs|1 widths; it needs at least 3"),
        (lambda t: (t["budget"] == 1e11) | (t["r"] > 8), "4 .budget, r. cells; it needs at least"),
    ],
)
def test_tables_that_cannot_hold_it_are_refused_with_the_reason(small, keep, reason):
    with pytest.raises(NotIdentifiedError, match=f"local law: (.*{reason})"):
        study_locally(small.select(keep(small.runs)))


def test_one_r_or_two_token_counts_cannot_hold_it(small):
    one = small.runs.assign(r=4)
    with pytest.raises(NotIdentifiedError, match="local law: 1 r; it needs at least 2"):
        local(book_injection(one, "once"))
    two = small.runs.assign(tokens=np.where(small.runs["budget"] > 2e11, 2e6, 1e6))
    with pytest.raises(NotIdentifiedError, match="local law: 2 D; it needs at least 3"):
        local(book_injection(two, "once"))


# --- the rule ----------------------------------------------------------------------------------


def chosen(small, studied, *, ratio: float | None, at_bounds=()) -> Answer:
    fitted = replace(analysis.fit(small, starts=5), at_bounds=at_bounds)
    error = None if ratio is None else studied.cells.left_out_rmse / ratio
    return choose(fitted, (0.1, 0.9), error, studied, None)


def test_the_rule_takes_the_law_that_predicts_better(small, studied):
    joint = chosen(small, studied, ratio=0.71)
    assert (joint.law, joint.ci95) == ("joint", (0.1, 0.9))
    assert "a ratio of 0.71 (not below 0.7)" in joint.why
    better = chosen(small, studied, ratio=0.69)
    assert (better.law, better.phi, better.ci95) == ("local", studied.phi, studied.estimate.ci95)
    assert "a ratio of 0.69 (below 0.7)" in better.why


def test_a_coefficient_at_the_edge_leaves_the_answer_to_the_local_law(small, studied):
    answer = chosen(small, studied, ratio=0.9, at_bounds=("log_E",))
    assert answer.law == "local"
    assert answer.why.startswith("E of the joint law at the edge of the range searched")
    assert chosen(small, studied, ratio=0.9, at_bounds=("phi",)).law == "joint"


def test_without_predictions_of_its_own_or_a_local_law(small, studied):
    assert chosen(small, studied, ratio=None).law == "local"
    alone = choose(analysis.fit(small, starts=5), None, 0.02, None, "11 runs")
    assert (alone.law, alone.why) == ("joint", "there is no local law beside it (11 runs)")


def test_the_answer_in_words_says_what_it_cannot_say(small):
    answer = Answer("local", 0.8, (0.66, 0.94), {}, "")
    text = in_words(answer, small.runs, {"runs": 36, "finished": 22})
    assert text.startswith("From 22 of 36 runs: φ = 0.80, 95 % interval 0.66 to 0.94")
    assert "1.74 (1.58 to 1.92) blocks of its size" in text
    assert "less than as many unshared layers would" in text
    assert "9,700 to 280,000 parameters trained on at most 1.48 million tokens" in text
    assert "need not be the 0.46 of the published models" in text
    bare = in_words(replace(answer, ci95=None), small.runs, None)
    assert bare.startswith("From 36 runs: φ = 0.80, without an interval")


def test_an_incomplete_study_says_so_first(tmp_path):
    runs = laptop_study.study()
    laptop_study.write_run_folders(runs[:30], tmp_path / "runs")
    plan = [{"name": run["run"], "folder": f"runs/{run['run']}"} for run in runs]
    (tmp_path / "study.json").write_text(json.dumps({"study": "s", "runs": plan}))
    study = fit_study(analysis.load_runs(tmp_path), Settings(starts=3, resamples=0))
    assert study.warnings[0].startswith("incomplete: 30 of 36 runs of this study are finished")
    assert in_words(study.answer, study.table.runs, study.planned).startswith("From 30 of 36 runs")


def test_the_local_law_can_be_asked_for(small):
    study = fit_study(small, Settings(law="local", starts=1, resamples=0))
    assert study.answer.law == "local"
    assert study.answer.why == "the local law was asked for"
    assert study.fit.params["phi"] == study.local.phi
    assert study.restricted["phi=0"].rmse > study.fit.rmse


def test_seeds_of_one_shape_share_its_cell():
    runs = [
        run | {"run": f"{run['run']}_seed{seed}"}
        for seed in (1, 2)
        for run in laptop_study.study(noise=0.012, seed=seed)
    ]
    both = table(runs)
    assert len(study_locally(both).cells.labels) == 12
    assert len(analysis.isoflop_curves(both.runs)) == 12
    fitted = analysis.fit(both, starts=10)
    assert analysis.bootstrap_fit(both, fitted, resamples=10).n_blocks == 12
    once = study_locally(table(runs[:36]))
    assert study_locally(table(runs[:36] * 2)).phi == pytest.approx(once.phi, abs=1e-6)
