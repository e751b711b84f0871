import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch.quickstart import describe_fit
from tests.launch.sweeps import ROOT, TIMEOUT_S, states, wait_until

GRID = Path(__file__).with_name("grid_study.py")


def test_the_answer_is_that_of_the_fit(tmp_path):
    path = tmp_path / "fit.json"
    answer = {"sentence": "From 36 runs: φ = 0.80.", "why": "errors on cells left out"}
    path.write_text(json.dumps({"answer": answer}))
    assert describe_fit(path) == (
        "From 36 runs: φ = 0.80.\nWhy this law: errors on cells left out."
    )
    path.write_text(json.dumps({"answer": None, "warnings": ["answer: too few runs"]}))
    assert describe_fit(path) == "no answer: answer: too few runs"


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
    assert "\nFrom 12 runs: φ = " in output
    assert "\nreport: runs/grid/analysis/report.html\n" in output
    assert "</html>" in (out / "analysis" / "report.html").read_text()
