"""What evaluation writes is what analysis reads: one run, measured by every suite and reported.

The two packages share no code; `analysis/tables/suites/parts.py` declares what stands between them.
"""

import copy
import json
from typing import get_args

import jax
import pytest
from rich.console import Console

from analysis import load_runs
from analysis.page.html import page
from analysis.page.section import PageFigure
from analysis.report import make_report
from analysis.tables.columns import COLUMNS, OTHERS
from analysis.tables.suites import parts
from analysis.tables.suites.schema import declared_keys, first_problem
from configs import elastic_depth
from looped_jax import evaluate as command
from looped_jax.evaluation.settings import Settings
from looped_jax.evaluation.suites import SUITES
from looped_jax.model.config import CHOICES
from looped_jax.progress import Display
from tests.untrained_runs import write_untrained_run

SCHEMAS = {"loss": parts.LOSS, **parts.SUITES}


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """(the folder of a measured run, what the suites returned as JSON, the summary)."""
    config = elastic_depth.cpu(mean=2, depth="fixed")
    config.data.folder = str(data.folder)
    config.data.sequence_length = 16
    config.evaluation.batch_size = 8
    config.evaluation.max_windows = 16
    config.model.vocab_size = 300
    config.model.width = config.model.mlp_hidden = 16
    config.model.head_dim = 8
    config.model.prelude_layers = config.model.coda_layers = 0
    config.mesh = "data:1,fsdp:1,tensor:1"
    folder = write_untrained_run(tmp_path_factory.mktemp("contract") / "one", config).path
    settings = Settings(
        resamples=10, epsilons=(0.1, 0.01), policies=("uniform", "kl"), carries=("full_depth",)
    )
    jax.config.update("jax_disable_most_optimizations", True)  # numbers do not matter, time does
    try:
        found = command.evaluate(folder, list(SUITES), Display(Console(quiet=True)), settings)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    summary = json.loads((folder / "summary.json").read_bytes())
    return folder, json.loads(json.dumps(found)), summary


def test_every_suite_writes_what_is_declared_and_nothing_else(run):
    _, found, summary = run
    assert SCHEMAS.keys() == found.keys() == SUITES.keys()
    for suite, schema in SCHEMAS.items():
        assert first_problem(found[suite], schema, undeclared=True) is None, suite
    assert {*COLUMNS, *OTHERS} - {"state"} <= summary.keys()


def test_the_report_holds_every_suite(run):
    folder, _, _ = run
    runs = load_runs(folder)
    assert (runs.warnings, runs.dropped) == ([], [])
    report = make_report(runs)
    anchors = [section.anchor for section in report.sections]
    assert anchors[:4] == ["elastic-depth", "settling", "exits", "readout"]
    figures = {figure.name for section in report.sections for figure in section.find(PageFigure)}
    assert {"elasticity", "passage_fixed_mean2", "frontier_fixed_mean2", "clamps"} <= figures
    assert "fixed_mean2" in page(report.title, report.subtitle, report.sections)


@pytest.mark.parametrize("choice", ["state_norm", "readout_norm"])
def test_choices_of_a_config_are_those_that_are_read(choice):
    declared = get_args(parts.CONDITION[choice])
    assert sorted(declared) == sorted(CHOICES[choice])


@pytest.mark.parametrize("suite", SCHEMAS)
def test_no_key_can_be_renamed_unnoticed(run, suite):
    """Not by the writer, whose keys are all declared, nor in the declaration, which all are in."""
    part = copy.deepcopy(run[1][suite])
    for path in declared_keys(SCHEMAS[suite]):
        renamed = f"{path[-1]}_renamed"
        rename(part, path, renamed)
        problem = first_problem(part, SCHEMAS[suite])
        assert problem is not None, path
        assert problem.endswith(f"{path[-1]} is missing"), problem
        rename(part, (*path[:-1], renamed), path[-1])


def test_a_run_with_a_renamed_key_is_named(run, tmp_path):
    folder, _, summary = run
    summary = copy.deepcopy(summary)
    rename(summary, ("exits", "probe", "scored_area_under_roc"), "area_under_roc")
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "status.json").write_bytes((folder / "status.json").read_bytes())
    runs = load_runs(tmp_path)
    assert "its exits is left out: probe.scored_area_under_roc is missing" in runs.warnings[0]
    assert list(runs.folders["fixed_mean2"].parts) == ["depth", "convergence", "readout"]


def rename(value, path, new) -> None:
    """Rename a key wherever the path leads; "*" leads into every element."""
    first, *rest = path
    if first == "*":
        for each in value.values() if isinstance(value, dict) else value:
            rename(each, rest, new)
    elif rest:
        rename(value[first], rest, new)
    else:
        value[new] = value.pop(first)
