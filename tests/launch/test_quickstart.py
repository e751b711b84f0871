import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from absl import flags

from launch import quickstart
from launch.quickstart import describe_fit
from tests.launch.sweeps import ROOT, TIMEOUT_S, states, wait_until

GRID = Path(__file__).with_name("grid_study.py")
FIT = {
    "params": {"phi": 0.456},
    "n_runs": 12,
    "at_bounds": [],
    "warnings": ["bootstrap: null: few runs"],
    "bootstrap": {
        "unit": "(budget, r) cell", "n_cells": 4, "resamples": 1000, "phi": {"ci95": [0.2, 1.25]},
        "at_bounds": {"alpha": 3},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {},
            "φ = 0.46, 95 % interval 0.20 to 1.25 from 12 runs "
            "(1000 resamples of 4 (budget, r) cells)",
        ),
        (
            {"at_bounds": ["phi"]},
            "φ = 0.46 (the edge of the range searched), 95 % interval 0.20 to 1.25 from 12 runs "
            "(1000 resamples of 4 (budget, r) cells)",
        ),
        (
            {"bootstrap": FIT["bootstrap"] | {"at_bounds": {"phi": 40}}},
            "φ = 0.46, 95 % interval 0.20 to 1.25 from 12 runs (1000 resamples of 4 (budget, r) "
            "cells, 40 of them at the edge of the range searched)",
        ),
        ({"bootstrap": None}, "φ = 0.46, without an interval: bootstrap: null: few runs"),
    ],
)
def test_the_answer_has_its_interval_or_says_why_not(changed, text, tmp_path):
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(FIT | changed))
    assert describe_fit(path) == text


def test_it_ends_with_how_python_is_run(tmp_path, monkeypatch, capsys):
    given = types.SimpleNamespace(study="study.py", out=str(tmp_path), workers=1)
    monkeypatch.setattr(flags, "FLAGS", given)
    for name in ("load_study", "prepare"):
        monkeypatch.setattr(quickstart, name, lambda *args, **kwargs: None)
    for name in ("run_study", "analysis"):
        monkeypatch.setattr(quickstart, name, lambda *args: 0)
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "fit.json").write_text(json.dumps(FIT))
    assert quickstart.main([]) == 0
    assert capsys.readouterr().out.endswith(f"/report.html\n\n{quickstart.HOW_PYTHON_IS_RUN}\n")


@pytest.mark.slow
def test_killed_and_typed_again_it_ends_with_a_report(tmp_path, environment):
    command = [sys.executable, "-m", "launch.quickstart", f"--study={GRID}", "--out=runs/grid"]
    start = lambda: subprocess.Popen(
        command, cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out = tmp_path / "runs" / "grid"
    first = start()
    wait_until(lambda: "finished" in states(out).values(), "a finished run")
    first.kill()
    first.communicate()
    finished = sum(state == "finished" for state in states(out).values())

    second = start()
    output, errors = second.communicate(timeout=TIMEOUT_S * 2)
    assert second.returncode == 0, errors
    assert f"12 runs, 6.00e+10 FLOPs, {finished} finished, {12 - finished} to do" in output
    assert "\nφ = " in output
    assert "\nreport: runs/grid/analysis/report.html\n" in output
    assert "</html>" in (out / "analysis" / "report.html").read_text()
