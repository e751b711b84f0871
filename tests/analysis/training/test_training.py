"""Runs beside each other: what their folders hold, how their losses and configs differ."""

import json

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.errors import InputError
from analysis.page.section import PageFigure
from analysis.tables.runs import load_runs
from analysis.training import figures
from analysis.training.results import (
    BINS,
    differing_keys,
    find_runs,
    paired_difference,
    read_run,
)
from analysis.training.section import training
from tests.analysis import laptop_study

W, T = 200, 64
HARD_W = np.random.default_rng(0).normal(0, 20, W)  # windows differ far more than runs do


def write(root, name, *, width=64, better=0.0, seed=1, digest="text", steps=500, finished=True):
    """A run folder whose held-out loss lies `better` nats below 3, window by window."""
    folder = root / name
    folder.mkdir(parents=True)
    config = {"name": name, "model": {"width": width, "recurrences": 4}, "seed": seed}
    (folder / "config.json").write_text(json.dumps({"digest": "0", "config": config}))
    lines = [
        json.dumps({"step": i, "tokens": 512 * i, "loss": 3 + 2 / i}) for i in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 501, "tok']))
    state = {"state": "finished" if finished else "running"}
    (folder / "status.json").write_text(json.dumps(state))
    if finished:
        noise_W = np.random.default_rng(seed).normal(0, 1, W)
        nats_W = (3 - better) * T + HARD_W + noise_W - noise_W.mean()
        np.save(folder / "validation_windows.npy", np.stack([nats_W, np.full(W, T)], axis=1))
        (run, *_) = laptop_study.study()
        loss = float(nats_W.sum() / (W * T))
        summary = run | {"run": name, "loss": loss, "data_digest": digest}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write(root, "a")
    write(root, "b", width=96, better=0.02, seed=2)
    write(root, "elsewhere", digest="other text")
    write(root, "unfinished", finished=False)
    return root


@pytest.fixture(scope="module")
def runs(root):
    return {run.name: run for run in find_runs([root])}


def test_the_difference_is_paired_by_window(runs):
    found = paired_difference(runs["a"], runs["b"])
    difference_W = (runs["b"].windows_W2 - runs["a"].windows_W2)[:, 0] / T
    assert found.value == pytest.approx(-0.02, abs=1e-12)
    assert found.se == pytest.approx(difference_W.std(ddof=1) / np.sqrt(W))
    assert found.ci95 == pytest.approx((-0.02 - 1.96 * found.se, -0.02 + 1.96 * found.se))
    alone = runs["a"].windows_W2[:, 0].std(ddof=1) / T / np.sqrt(W)
    assert found.se < alone / 8
    back = paired_difference(runs["b"], runs["a"])
    assert back.value == pytest.approx(-found.value)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("elsewhere", "a and elsewhere were not measured on the same windows"),
        ("unfinished", "unfinished has no loss by window: once it is finished, measure it with"),
    ],
)
def test_what_cannot_be_paired_says_why(runs, other, reason):
    assert reason in paired_difference(runs["a"], runs[other])


def test_config_keys_that_differ(runs):
    keys = differing_keys([runs["a"], runs["b"]])
    assert keys == ["name", "model.width", "seed"]
    assert differing_keys([runs["a"], runs["a"]]) == []


def test_curves_are_averages_of_what_was_logged(runs):
    tokens, loss = runs["a"].curve()
    assert len(tokens) <= BINS
    assert (np.diff(tokens) > 0).all()
    np.testing.assert_allclose([tokens[0], loss[0]], [512, 5])
    assert loss[-1] == pytest.approx(3 + 2 / 500, abs=1e-3)
    left, right = figures.curves([runs["a"], runs["unfinished"]]).axes
    np.testing.assert_array_equal(left.lines[0].get_xdata(), tokens)
    assert len(left.lines) == 3  # two curves and the loss of the one that has ended
    scale = runs["a"].summary["flops_per_token"]
    np.testing.assert_allclose(right.lines[0].get_xdata(), scale * tokens)


def test_many_runs_are_told_apart_by_budget_and_r(root, runs):
    names = [handle.get_text() for handle in figures.curves([runs["a"]] * 9).legends[0].texts]
    assert names == ["10¹¹", "r = 1", "held-out loss"]


def test_runs_of_one_name_go_by_their_folder(root, tmp_path):
    again = write(tmp_path, "a")
    names = [run.name for run in find_runs([root / "a", again])]
    assert names == [str(root / "a"), str(again)]


def test_the_command(root, tmp_path, capsys):
    arguments = ["runs", str(root / "a"), str(root / "b"), f"--out={tmp_path}", "--tables=csv"]
    assert main(arguments) == 0
    written = json.loads((tmp_path / "comparison_of_runs.json").read_text())
    assert written["differences"][0]["difference"]["value"] == pytest.approx(-0.02, abs=1e-12)
    assert written["config"][1] == {"key": "model.width", "run_0": "64", "run_1": "96"}
    assert [run["run"] for run in written["runs"]] == ["a", "b"]
    out = capsys.readouterr().out
    assert "-0.0200 [" in out
    assert "better" in out
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        "trained_runs.csv", "paired_differences.csv", "config_differences.csv",
    }  # fmt: skip


def test_the_report_has_the_curves_of_its_runs(root):
    table = load_runs(root, where="run == 'a'")
    (figure,) = training(table).find(PageFigure)
    assert figure.alt.startswith("Two line charts of a: ")
    assert "3.0" in figure.alt


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "config.json: unreadable"),
        ("summary.json", b"[]", "summary.json: not a JSON object"),
        ("summary.json", b"{}", "summary.json: flops_per_token is not a number"),
        ("metrics.jsonl", b"{\n{}\n", "metrics.jsonl: line 1 is not a JSON object"),
        ("metrics.jsonl", b"{}\n", "metrics.jsonl: no line has tokens and loss"),
        ("validation_windows.npy", b"no array", "validation_windows.npy: unreadable"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, file, content, message):
    folder = write(tmp_path, "a")
    (folder / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_run(folder)


def test_a_folder_without_runs(tmp_path, capsys):
    assert main(["runs", str(tmp_path), f"--out={tmp_path / 'out'}"]) == 2
    assert "holds no run (a folder with config.json and metrics.jsonl)" in capsys.readouterr().err
