"""Runs measured in processes of their own, with a program in the place of an evaluation."""

import json
import sys
from pathlib import Path

import pytest

from launch import evaluations
from launch.evaluations import Evaluation, measure, run_here
from launch.slurm import backend
from launch.slurm.resources import Resources

PROGRAM = "import os, sys; print('on', os.environ['NPROC']); sys.exit(int(sys.argv[1]))"


class Program(Evaluation):
    @property
    def command(self):
        return [sys.executable, "-c", PROGRAM, *self.arguments]


def made(folder, status):
    folder.mkdir()
    return Program(folder, [status])


def test_every_run_is_measured_and_failures_are_listed(tmp_path):
    said = []
    runs = [made(tmp_path / name, status) for name, status in (("a", "0"), ("b", "3"), ("c", "0"))]
    assert run_here(runs, 2, said.append) == 1
    assert {line.split(";")[0] for line in said[:-1]} >= {"a: measured", "c: measured"}
    assert any(line.startswith("b: exit status 3; ") and "\non " in line for line in said)
    assert said[-1] == "1 of 3 runs were not measured; the same call tries again"
    assert run_here(runs[:1], 1, said.append) == 0
    assert run_here([], 1, said.append) == 0


def test_a_job_ends_with_the_status_of_its_evaluation(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NPROC", "1")
    with pytest.raises(SystemExit, match="3"):
        measure(made(tmp_path / "run", "3").command, str(tmp_path / "log"))
    assert capsys.readouterr().out.endswith("log ends:\non 1\n")


def test_runs_in_the_queue_are_known_from_what_was_submitted(tmp_path, monkeypatch):
    folder = tmp_path / evaluations.SUBMISSIONS / "evaluate-1"
    folder.mkdir(parents=True)
    (folder / evaluations.PLAN).write_text(json.dumps({"runs": ["/a", "/b", "/c"]}))
    monkeypatch.setattr(
        evaluations, "squeue",
        lambda names: [["7_1", name, "1", "RUNNING", "None"] for name in names],
    )  # fmt: skip
    assert evaluations._in_the_queue(tmp_path) == {"/b"}


def test_no_array_has_more_jobs_than_slurm_takes(tmp_path, monkeypatch):
    """Each array has a plan of its own, by which its jobs are known in the queue."""
    runs, arrays = [made(tmp_path / name, "0") for name in "abcde"], {}

    def submitted(submitit, folder, parameters, function, calls):
        arrays[parameters["job_name"]] = [Path(log).parent.name for _, log in calls]

    monkeypatch.setattr(backend, "ARRAY_SIZE", 2)
    monkeypatch.setattr(evaluations, "submit_array", submitted)
    monkeypatch.setattr(evaluations, "squeue", lambda names: [])
    said = []
    assert evaluations.submit(runs, tmp_path, Resources(), 1, said.append) == 0
    assert list(arrays.values()) == [["a", "b"], ["c", "d"], ["e"]]
    assert said[0].startswith("5 runs submitted, 0 in the queue")
    second, last = list(arrays)[1:]
    queued = [["8_1", second, "1", "RUNNING", ""], ["9", last, "N/A", "PENDING", ""]]
    monkeypatch.setattr(evaluations, "squeue", lambda names: queued)
    assert evaluations._in_the_queue(tmp_path) == {str(tmp_path / "d"), str(tmp_path / "e")}
