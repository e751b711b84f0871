"""Folders of runs as people have them: links, copies, seeds, names and files that are not text."""

import json
import os
import shutil

import pytest

from analysis import AnalysisError, Settings, load_runs
from analysis.__main__ import main
from analysis.convergence.section import settling
from analysis.page.section import PageFigure
from analysis.page.table import Table
from analysis.report import make_report
from analysis.tables.measured import measured
from analysis.tables.suites.parts import SUITES
from tests.analysis import elastic_study, laptop_study


@pytest.fixture
def folder(tmp_path):
    return laptop_study.write_run_folders(laptop_study.study(), tmp_path / "runs")


def some_runs(folder):
    return sorted(path.parent for path in folder.rglob("status.json"))


def dropped(folder) -> dict[str, str]:
    return {run.run: run.reason for run in load_runs(folder).dropped}


def test_links_to_runs_are_followed_once(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first, second = some_runs(folder)[:2]
    first.rename(elsewhere / first.name)
    (folder / "linked").symlink_to(elsewhere)
    (folder / "a second name").symlink_to(second)
    (folder / "loop").symlink_to(folder.parent)
    (folder / "lost").symlink_to(tmp_path / "nowhere")
    table = load_runs(folder)
    assert len(table) == 36
    assert table.folders[first.name].path == folder / "linked" / first.name
    assert {run.run: run.reason[:20] for run in table.dropped} == {
        "a second name": f"a link to {second}"[:20],
        "loop": f"a link to {folder}"[:20],
        "lost": "a link to nothing",
    }


def test_a_copy_of_a_run_is_left_out(folder):
    run = some_runs(folder)[3]
    shutil.copytree(run, folder / f"{run.name}.bak")
    assert dropped(folder) == {f"{run.name}.bak": f"a copy of {run.name}"}


def test_seeds_of_one_name_go_by_their_folders(folder):
    run = some_runs(folder)[3]
    summary = json.loads((run / "summary.json").read_text())
    for seed in (1, 2):
        again = folder / f"seed{seed}" / run.name
        shutil.copytree(run, again)
        changed = summary | {"seed": seed, "loss": summary["loss"] + 0.01 * seed}
        (again / "summary.json").write_text(json.dumps(changed))
    table = load_runs(folder)
    assert table.dropped == []
    for names in (table.runs["run"], table.folders):
        found = {name for name in names if run.name in name}
        assert found == {run.name, f"seed1/{run.name}", f"seed2/{run.name}"}
    assert any("several runs of one (r, N, D): 3 of 38 runs" in line for line in table.warnings)


def test_hostile_files_cost_one_run_each(folder, tmp_path, capsys):
    runs = some_runs(folder)
    bad_name = os.path.join(os.fsencode(folder), b"caf\xe9")
    os.rename(os.fsencode(runs[0]), bad_name)
    (runs[1] / "summary.json").write_text("[" * 100_000)
    (runs[2] / "summary.json").write_text('{"run": "\\ud800"}')
    for run in (runs[3], runs[5]):
        (run / "summary.json").unlink()
    (runs[3] / "status.json").write_text('{"state": "failed", "reason": "\x1b]0;x\x07\\n\\u202e"}')
    (runs[4] / "summary.json").write_bytes((runs[4] / "summary.json").read_bytes()[:50])
    (runs[5] / "status.json").unlink()
    os.mkfifo(runs[5] / "status.json")
    out = tmp_path / "out"
    assert main(["fit", str(folder), f"--out={out}", "--starts=2", "--bootstrap=2"]) == 0
    result = json.loads((out / "fit.json").read_text())
    assert (result["n_runs"], result["n_dropped"]) == (30, 6)
    reasons = {run["run"]: run["reason"] for run in result["dropped"]}
    assert reasons["caf\\udce9"] == "the name of its folder is not UTF-8"
    assert reasons[runs[3].name].startswith("broken: status.json is unreadable (Invalid control")
    assert reasons[runs[5].name] == "broken: status.json is no file"
    assert "\x1b" not in capsys.readouterr().out
    report = make_report(load_runs(folder), Settings(starts=2, resamples=2))
    (runs_section,) = [section for section in report.sections if section.anchor == "runs"]
    (listed,) = [table for table in runs_section.find(Table) if table.name == "dropped"]
    assert {row["run"]: row["reason"] for row in listed.rows} == reasons


def test_a_name_is_shown_but_not_obeyed(folder):
    run = some_runs(folder)[0]
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"run": "a\x1b[31m\nb\u202e"}))
    assert r"a\x1b[31m\nb\u202e" in set(load_runs(folder).runs["run"])


def test_a_folder_that_cannot_be_searched_is_named(folder, monkeypatch):
    scandir, closed = os.scandir, folder / "closed"
    closed.mkdir()

    def refuse(path):
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert dropped(folder) == {"closed": "cannot be read: Permission denied"}


@pytest.mark.parametrize("suite", ["depth", "convergence", "exits"])
def test_a_broken_part_costs_its_run_alone(tmp_path, suite):
    folder = elastic_study.write(tmp_path / "runs")
    path = folder / "sampled_mean8" / "summary.json"
    summary = json.loads(path.read_text())
    summary[suite]["tokens"] = "many"
    path.write_text(json.dumps(summary))
    table = load_runs(folder)
    (line,) = [line for line in table.warnings if "left out" in line]
    assert line.startswith(f"sampled_mean8: its {suite} is left out: tokens is 'many', not int")
    counts = {name: len(measured(table, name)) for name in SUITES}
    assert counts == {"depth": 3, "convergence": 3, "exits": 3, "readout": 0} | {suite: 2}


def test_an_unreadable_table_of_tokens_costs_its_passage(tmp_path):
    folder = elastic_study.write(tmp_path / "runs")
    (folder / "sampled_mean8" / "convergence.parquet").write_bytes(b"PAR1")
    section = settling(load_runs(folder))
    assert "sampled_mean8: no passage is shown" in section.text()
    figures = [item.name for item in section.find(PageFigure)]
    passages = {name for name in figures if name.startswith("passage_")}
    assert passages == {"passage_sampled_mean4", "passage_fixed_mean4"}


def test_no_run_at_all(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AnalysisError, match=r"no usable run .1 dropped: link: a link to nothing"):
        load_runs(tmp_path)
