"""The studies of one recurrence's worth that a laptop runs: their grids, and names of their own."""

from pathlib import Path

import numpy as np
import pytest

from launch.study import load_study
from looped_jax.errors import UserError

STUDIES = Path(__file__).parents[2] / "configs" / "studies"


def cells(study):
    return {(run.resolved.model.recurrences, run.config["budget"]["flops"]) for run in study.runs}


@pytest.mark.parametrize(
    ("file", "n_runs", "n_cells"),
    [("quickstart.py", 36, 12), ("evening.py", 72, 24), ("evening.py:seeds=2", 144, 24)],
)
def test_the_grid_holds_enough_cells_for_the_jackknife(file, n_runs, n_cells, tmp_path):
    study = load_study(STUDIES / file, tmp_path)
    assert len(study.runs) == n_runs
    assert len(cells(study)) == n_cells
    assert {run.resolved.evaluation.max_windows for run in study.runs} == {2048}


def test_the_evening_reads_the_novels_about_once(tmp_path):
    tokens = [run.tokens for run in load_study(STUDIES / "evening.py", tmp_path).runs]
    np.testing.assert_allclose([min(tokens), max(tokens)], [1.6e5, 2.3e6], rtol=0.02)


def test_more_seeds_keep_the_runs_there_are(tmp_path):
    one, two = (load_study(STUDIES / f"evening.py:seeds={n}", tmp_path).runs for n in (1, 2))
    kept = {run.folder.path for run in one}
    assert kept < {run.folder.path for run in two}
    assert {run.config["seed"] for run in two if run.folder.path not in kept} == {1}


@pytest.mark.parametrize("arg", ["seeds=0", "seeds=many", "runs=2"])
def test_a_wrong_argument_names_what_is_allowed(arg, tmp_path):
    with pytest.raises(UserError, match="allowed: seeds=1, seeds=2"):
        load_study(STUDIES / f"evening.py:{arg}", tmp_path)
