"""Snapshots of run folders, and what is shown of them."""

import io
import json
import re

import pytest
from rich.console import Console

from launch.backend import Ended
from launch.shown.display import SweepDisplay
from launch.shown.table import planned_table, results_table, text_table
from launch.snapshot import last_metrics, snapshot
from launch.study import load_study
from tests.launch.sweeps import PLANNED


@pytest.fixture
def runs(tmp_path):
    """r1_100 is finished, r1_200 at step 50, r2_100 new."""
    runs = load_study(PLANNED, tmp_path).runs
    for run in runs[:2]:
        run.folder.path.mkdir(parents=True)
        run.folder.set_status("running", step=40)
    runs[0].folder.write_summary({"loss": 3.25, "seconds": 61.0})
    log(runs[1], {"step": 50, "loss": 4.5, "tokens_per_second": 12_345.0, "seconds": 9.0})
    return runs


def log(run, *lines):
    with open(run.folder.metrics_path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_a_snapshot_tells_how_far_a_run_is(runs):
    finished, running, new = map(snapshot, runs)
    assert (finished.state, finished.step, finished.loss, finished.seconds) == (
        "finished", 100, 3.25, 61.0,
    )  # fmt: skip
    assert (running.state, running.step, running.loss) == ("running", 50, 4.5)
    assert (new.state, new.step, new.loss) == (None, 0, None)
    runs[1].folder.set_status("diverged", step=60, reason="loss is nan")
    diverged = snapshot(runs[1])
    assert (diverged.state, diverged.step, diverged.reason) == ("diverged", 60, "loss is nan")


def test_the_last_metrics_are_those_of_the_last_whole_training_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_metrics(path) == {}
    path.write_text("")
    assert last_metrics(path) == {}
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 1, "validation_loss": 3.0}\n{"step": 2, "l')
    assert last_metrics(path) == {"step": 1, "loss": 2.0}
    many = [json.dumps({"step": step, "loss": 1.0, "x": "y" * 50}) for step in range(1000)]
    path.write_text("\n".join(many) + "\n")
    assert last_metrics(path)["step"] == 999


class Shown:
    """A display that writes to a string, at a time that the test sets."""

    def __init__(self, runs, path, **console):
        self.file, self.time = io.StringIO(), 0.0
        study = load_study(PLANNED, path)
        states = {run.name: snapshot(run) for run in study.runs}
        self.display = SweepDisplay(
            study, states, 2, Console(file=self.file, width=100, **console), lambda: self.time
        )

    @property
    def lines(self):
        return self.file.getvalue().splitlines()


def test_plain_lines_come_now_and_then(runs, tmp_path):
    shown = Shown(runs, tmp_path)
    with shown.display as display:
        shown.time = 10.0
        display.refresh([runs[1], runs[2]])
        assert shown.lines == []
        shown.time = 20.0
        log(runs[1], {"step": 100, "loss": 4.25, "tokens_per_second": 6_430.0, "seconds": 20.0})
        display.refresh([runs[1], runs[2], None])
    per_step = runs[0].flops / 100
    total = 300 * per_step + runs[2].flops
    (line,) = shown.lines
    head, *workers = line.split("; ")
    assert head.startswith(f"tiny: 1/3 runs, {200 * per_step:.2e}/{total:.2e} FLOPs (")
    assert workers == ["r1_200 step 100/200, loss 4.250, 6.43k tokens/s", "r2_100 starting"]
    # 50 steps in 20 s; 100 steps and another run are left, and 2 workers.
    seconds = 20 * max(100 * per_step + runs[2].flops, 2 * runs[2].flops) / (50 * per_step)
    assert display.seconds_left == pytest.approx(seconds)
    assert "left" in head


def test_what_a_worker_does_before_its_first_step_is_shown(runs, tmp_path):
    shown = Shown(runs, tmp_path)

    def workers():
        shown.time += 20.0
        with shown.display as display:
            display.refresh([runs[1], runs[2]])
        return shown.lines[-1].split("; ")[1:]

    runs[2].folder.path.mkdir(parents=True)
    runs[2].folder.set_status("running", step=0, reason="compiling")
    runs[1].folder.set_status("running", step=50, reason="goes on after step 50, compiling")
    assert workers() == ["r1_200 goes on after step 50, compiling", "r2_100 compiling"]
    log(runs[1], {"step": 60, "loss": 4.25, "tokens_per_second": 1000.0, "seconds": 9.0})
    log(runs[2], {"step": 10, "loss": 5.0})
    assert workers() == [
        "r1_200 step 60/200, loss 4.250, 1k tokens/s", "r2_100 step 10/100, loss 5.000",
    ]  # fmt: skip


def test_the_time_left_is_unknown_before_anything_is_done(runs, tmp_path):
    shown = Shown(runs, tmp_path)
    shown.time = 5.0
    assert shown.display.seconds_left is None
    assert shown.display.line().endswith("time left unknown")


def test_how_runs_end_is_told_at_once(runs, tmp_path):
    shown = Shown(runs, tmp_path)
    (runs[1].folder.path / "output.log").write_text("".join(f"line {i}\n" for i in range(40)))
    with shown.display as display:
        display.ended(Ended(runs[0], "finished", None, 65.0))
        display.ended(Ended(runs[1], "failed", "out of memory", 5.0))
        display.ended(Ended(runs[2], "interrupted", "SIGTERM after step 3", 5.0))
    assert shown.lines[:2] == [
        "finished r1_100: loss 3.2500 nats (1:05, 1/3)",
        "failed r1_200: out of memory (0:05, 2/3)",
    ]
    assert shown.lines[2].endswith("output.log ends:")
    assert [line.strip() for line in shown.lines[3:-1]] == [f"line {i}" for i in range(25, 40)]
    assert shown.lines[-1] == "interrupted r2_100: SIGTERM after step 3 (0:05, 2/3)"


def test_a_terminal_shows_each_worker(runs, tmp_path):
    shown = Shown(runs, tmp_path, force_terminal=True, force_interactive=True)
    with shown.display as display:
        shown.time = 1.0
        display.refresh([runs[1], None])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.file.getvalue())
    assert "\nworker 1  r1_200" in text
    assert "step 50/200  loss 4.500  12.3k tokens/s" in text
    assert "worker 2  idle" in text
    assert "1/3 runs" in text


def test_tables(runs):
    states = {run.name: snapshot(run) for run in runs}
    header, finished, running, new = planned_table(runs, states, runs[0].flops / 7).splitlines()
    assert header.split() == [
        "run", "r", "width", "parameters", "tokens", "steps", "FLOPs", "estimated", "time", "state",
    ]  # fmt: skip
    assert finished.split()[-2:] == ["0:07", "finished"]
    assert running.endswith("0:14  started, step 50")
    assert new.endswith("new")
    assert new.split()[:6] == ["r2_100", "2", "8", f"{runs[2].parameters:,}", "6,400", "100"]
    _, finished, running, new = results_table(runs, states).splitlines()
    assert finished.split()[-3:] == ["3.2500", "1:01", "finished"]
    assert running.endswith("–  0:09  started, step 50")


def test_columns_are_aligned():
    assert text_table(["a", "b", "c"], [["x", "10", "y"], ["long", "2", "z"]]) == (
        "a      b  c\nx     10  y\nlong   2  z"
    )
