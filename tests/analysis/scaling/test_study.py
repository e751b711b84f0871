"""The whole study and its fit.json: every part there, or null with a reason."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import NotIdentifiedError, RunTable, Settings, fit_study, load_runs
from analysis.scaling.show import fit_sections
from analysis.scaling.show.answer_sections import warnings
from analysis.scaling.show.fit_json import to_json
from analysis.scaling.study import Study
from analysis.tables.files import dumps
from analysis.tables.provenance import provenance
from tests.analysis import laptop_study

KEYS = [
    "schema",
    "law",
    "injection",
    "n_runs",
    "n_dropped",
    "dropped",
    "params",
    "objective",
    "delta",
    "r2",
    "rmse",
    "max_abs_residual",
    "restricted",
    "per_architecture",
    "residuals",
    "halves",
    "injection_sensitivity",
    "bootstrap",
    "starts",
    "warnings",
    "provenance",
]
QUICK = Settings(starts=4, resamples=10)


def document(study: Study) -> dict:
    text = dumps(
        to_json(study, provenance(study.table, seed=0, command="python -m analysis fit x"))
    )
    return json.loads(text)


def reasons(result: dict, part: str) -> list[str]:
    return [warning for warning in result["warnings"] if warning.startswith(part)]


@pytest.fixture
def without_local(monkeypatch):
    """A study without the local law, whose many fits a test does not look at."""

    def refuse(table):
        raise NotIdentifiedError("left out here")

    monkeypatch.setattr("analysis.scaling.study.study_locally", refuse)


@pytest.fixture(scope="module")
def study(published_study) -> Study:
    return published_study


@pytest.fixture(scope="module")
def result(study) -> dict:
    return document(study)


def test_every_key_in_order(result):
    assert list(result)[: len(KEYS)] == KEYS
    assert result["schema"] == 2
    assert (result["law"], result["injection"], result["delta"]) == ("joint", "once", 0.001)
    assert (result["n_runs"], result["n_dropped"], result["dropped"]) == (116, 0, [])
    assert list(result["params"]) == ["phi", "alpha", "beta", "E", "A", "B"]
    assert set(result["provenance"]) == {
        "input",
        "sha256",
        "versions",
        "seed",
        "command",
        "time",
    }


def test_numbers_at_full_precision(study, result):
    assert result["params"] == study.fit.params
    assert result["objective"] == study.fit.objective
    assert result["bootstrap"]["phi"]["ci95"] == list(study.bootstrap.interval("phi"))


def test_parts_of_the_published_study(result):
    assert result["restricted"]["phi=0"]["r2"] == pytest.approx(0.98568, abs=1e-5)
    assert result["restricted"]["phi=1"]["phi"] == 1.0
    assert list(result["per_architecture"]) == ["1", "2", "4", "8"]
    assert result["per_architecture"]["8"]["E"] == pytest.approx(1.6935, abs=1e-3)
    assert "phi" not in result["per_architecture"]["8"]
    assert result["residuals"]["4"]["mean"] == pytest.approx(-0.0055, abs=1e-3)
    assert result["halves"]["low"]["n"] == 56
    assert result["halves"]["high"]["phi"] == pytest.approx(0.487, abs=1e-3)
    assert result["halves"]["low"]["budgets"] == [4.64e17, 1e18, 2.15e18]
    assert result["injection_sensitivity"] == pytest.approx(
        {"once": 0.4576, "recurrent": 0.4330, "excluded": 0.4721}, abs=1e-4
    )
    assert result["bootstrap"]["unit"] == "(budget, r) cell"
    assert (result["bootstrap"]["n_cells"], result["bootstrap"]["resamples"]) == (24, 20)
    assert result["starts"]["n"] == 6
    assert list(result["leave_one_out"]["r"]) == ["1", "2", "4", "8"]
    assert result["leave_one_out"]["budget"]["2.15e+19"]["n"] == 16
    assert result["warnings"] == []


def test_the_local_law_stands_beside_and_the_answer_says_why(study, result):
    local, answer = result["local"], result["answer"]
    assert local["phi"] == pytest.approx(0.457, abs=0.002)
    assert local["ci95"] == pytest.approx([0.421, 0.493], abs=0.003)
    assert local["rmse"] == pytest.approx(0.0074, abs=1e-4)
    assert local["cells"] == len(local["without_cell"]) == 24
    assert 0.4 < local["without_cell"]["4.64e+17, 1"] < 0.5
    assert local["without_r"] == pytest.approx(
        {"1": 0.50, "2": 0.44, "4": 0.44, "8": 0.48}, abs=0.006
    )
    assert local["injection"]["recurrent"] == pytest.approx(0.43, abs=0.006)
    assert local["embeddings_counted"] is None
    assert local["worth_per_r"] == pytest.approx({"2": 0.36, "4": 0.48, "8": 0.44}, abs=0.006)
    assert answer["law"] == "joint"
    assert answer["phi"] == study.fit.phi
    assert answer["left_out_rmse"] == pytest.approx({"joint": 0.0111, "local": 0.0086}, abs=1e-4)
    assert "a ratio of 0.77 (not below 0.7)" in answer["why"]
    assert answer["sentence"].startswith("From 116 runs: φ = 0.46, 95 % interval 0.4")


def test_predictions_add_up(study):
    frame = study.predictions()
    np.testing.assert_allclose(frame["predicted"] + frame["residual"], frame["loss"])
    np.testing.assert_allclose(frame["predicted"], study.fit.predict(study.table.runs), rtol=1e-12)
    assert (frame["n_effective"] >= frame["n_once"]).all()


def test_chinchilla_law_says_what_does_not_apply(published, without_local):
    result = document(fit_study(published, Settings(law="chinchilla", starts=4, resamples=10)))
    assert result["params"]["phi"] is None
    assert result["bootstrap"]["phi"] is None
    for part in ("restricted", "halves", "injection_sensitivity", "leave_one_out"):
        assert result[part] is None
        assert reasons(result, f"{part}: null: ")
    # φ = 0 counts every parameter once whatever r: the same law.
    assert result["params"]["E"] == pytest.approx(1.69589, abs=1e-4)
    assert reasons(result, "chinchilla law over 4 values of r")


def test_held_phi(published, without_local):
    result = document(fit_study(published, Settings(phi=0.3, starts=4, resamples=10)))
    assert result["params"]["phi"] == 0.3
    assert result["halves"]["low"]["phi"] == 0.3
    assert result["bootstrap"]["phi"] is None
    assert result["bootstrap"]["alpha"]["se"] > 0
    assert result["injection_sensitivity"] is None
    assert reasons(result, "injection_sensitivity: null: φ is held fixed")


def test_holdout_is_not_fitted(published, without_local):
    study = fit_study(published, Settings(holdout=2, starts=4, resamples=0))
    result = document(study)
    assert result["n_runs"] == 80
    assert result["params"]["phi"] == pytest.approx(0.4516, abs=1e-3)
    assert result["holdout"]["left_out"] == [1e19, 2.15e19]
    assert result["holdout"]["n"] == 36
    assert result["bootstrap"] is None
    assert reasons(result, "bootstrap: null: 0 resamples were asked for")


def test_small_noisy_study_works_and_flags(tmp_path, without_local):
    root = laptop_study.write_run_folders(laptop_study.study(noise=0.08, seed=2), tmp_path)
    broken = root / "lost"
    broken.mkdir()
    (broken / "status.json").write_text('{"state": "diverged", "reason": "loss is nan"}')
    study = fit_study(load_runs(root), QUICK)
    result = document(study)
    assert result["n_runs"] == 36
    assert result["dropped"] == [{"run": "lost", "reason": "diverged: loss is nan"}]
    assert result["halves"] is None
    assert reasons(result, "halves: null: 3 budget(s): halves need at least 4")
    assert reasons(result, "bootstrap: 12 blocks ((budget, r) cell) are few")
    low, high = result["bootstrap"]["phi"]["ci95"]
    assert low < result["params"]["phi"] < high
    assert "lost          diverged: loss is nan" in fit_sections.runs(study).text()
    said = warnings(study.warnings).text()
    assert "warning: The intervals from resampled runs: 12 blocks" in said


def test_parts_without_enough_runs_are_null_with_a_reason(published, without_local):
    runs = published.runs
    few = published.select((runs["r"] == 1) | ((runs["r"] == 4) & (runs["budget"] < 6e17)))
    study = fit_study(few, QUICK)
    result = document(study)
    assert result["per_architecture"]["4"] is None
    assert reasons(result, "per_architecture r = 4: null: 4 runs cannot determine 5 parameters")
    assert result["leave_one_out"]["r"]["4"] is None
    assert reasons(result, "leave_one_out r = 4: null: φ is not identified")
    assert reasons(result, "halves high: null: ")
    lines = fit_sections.law(study).text().splitlines()
    (line,) = [line for line in lines if line.startswith("r = 4 alone")]
    assert set(line.split()[4:]) == {"–"}


def test_too_few_blocks_make_the_bootstrap_null(published, without_local):
    result = document(fit_study(published, Settings(unit="r", starts=4, resamples=10)))
    assert result["bootstrap"] is None
    assert reasons(result, "bootstrap: null: bootstrap: 4 blocks")


def test_the_sections_say_what_matters(study):
    lines = fit_sections.law(study).text().splitlines()
    low, high = study.bootstrap.interval("phi")
    (phi,) = [line for line in lines if line.startswith("φ  ")]
    assert phi.split()[:2] == ["φ", "0.4576"]
    assert f"[{low:.4g}, {high:.4g}]" in phi
    assert any(line.startswith("φ = 0") and "0.9857" in line for line in lines)
    assert any(line.startswith("φ = 1") and "0.9543" in line for line in lines)
    assert any(line.startswith("r = 8 alone") and line.endswith("of 6") for line in lines)
    text = fit_sections.trust(study).text()
    for words in ("counted recurrent  ", "counted excluded  ", "low budgets, ", "high budgets, "):
        assert words in text


def test_no_nan_reaches_the_file(study):
    with pytest.raises(ValueError, match="JSON"):
        dumps({"x": float("nan")})


def test_laptop_study_recovers_its_truth(without_local):
    runs = pd.DataFrame(laptop_study.study(noise=0.004, seed=0))
    table = RunTable(runs, "once", Path("synthetic"), "0" * 64)
    study = fit_study(table, Settings(starts=5, resamples=60))
    low, high = study.bootstrap.interval("phi")
    assert low < laptop_study.TRUTH.phi < high
