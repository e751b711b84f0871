"""What the Slurm backend makes of squeue's answers and of the files that jobs leave."""

import os
import signal
import sys

import pytest

from launch.slurm.backend import SlurmBackend, SlurmUnreachable
from launch.slurm.plans import plan_submission, read_submissions
from launch.slurm.resources import Resources
from launch.study import load_study
from looped_jax.errors import UserError
from tests.launch.sweeps import PLANNED, wait_until


@pytest.fixture
def study(tmp_path):
    return load_study(PLANNED, tmp_path)


@pytest.fixture
def say(tmp_path, monkeypatch):
    """Puts a squeue on the PATH that says what a test wants it to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def say(*jobs, status=0):
        lines = "\n".join("|".join(job) for job in jobs)
        (folder / "squeue").write_text(
            f"#!/bin/sh\necho >>{folder}/asked\ncat <<'END'\n{lines}\nEND\nexit {status}\n"
        )
        for name in ("squeue", "sbatch", "srun"):
            (folder / name).touch()
            (folder / name).chmod(0o755)

    say()
    return say


def backend(study, tmp_path):
    return SlurmBackend(study, tmp_path, Resources())


def test_runs_are_found_in_the_queue_by_the_name_of_their_submission(study, tmp_path, say):
    first, second, third = study.runs
    submission = plan_submission("tiny", tmp_path, [[first, second], [third]])
    alone = plan_submission("tiny", tmp_path, [[first]])
    say(("17_1", submission.name, "1", "PENDING", "Priority"))
    assert {name: str(job) for name, job in backend(study, tmp_path).jobs().items()} == {
        third.name: "17_1 pending (Priority)"
    }
    say(("17_0", submission.name, "0", "RUNNING", "None"), ("18", alone.name, "N/A", "PENDING", ""))
    first.folder.path.mkdir(parents=True)
    first.folder.write_summary({"loss": 3.0, "seconds": 1.0})
    found = backend(study, tmp_path).jobs()
    assert {name: str(job) for name, job in found.items()} == {second.name: "17_0 running"}


def test_nothing_is_asked_where_nothing_was_submitted(study, tmp_path, say):
    say(status=1)
    assert backend(study, tmp_path).jobs() == {}


def test_a_queue_that_does_not_answer_is_an_error(study, tmp_path, say):
    plan_submission("tiny", tmp_path, [study.runs])
    say(status=1)
    with pytest.raises(SlurmUnreachable, match="squeue: exit status 1"):
        backend(study, tmp_path).jobs()


def test_the_run_that_a_job_died_at_has_failed(study, tmp_path, say):
    first, second, third = study.runs
    submission = plan_submission("tiny", tmp_path, [[first, second], [third]])
    submission.died_path(0).write_text("137\n")
    (submission.folder / "17_0_0_log.out").write_text("Killed\n")
    first.folder.path.mkdir(parents=True)
    first.folder.set_status("running", step=50)
    backend(study, tmp_path).settle({})
    status = first.folder.status()
    assert (status.state, status.step) == ("failed", 50)
    assert status.reason == "its job exited with status 137"
    assert (first.folder.path / "output.log").read_text().endswith("17_0_0_log.out ends:\nKilled\n")
    backend(study, tmp_path).settle({})
    assert [run.folder.status() for run in (second, third)] == [None, None]


def test_a_job_that_started_no_run_fails_all_of_its_runs(study, tmp_path, say):
    first, second, third = study.runs
    submission = plan_submission("tiny", tmp_path, [[first, second]])
    submission.died_path(0).write_text("1\n")
    backend(study, tmp_path).settle({})
    assert [run.folder.status().state for run in (first, second)] == ["failed", "failed"]
    assert third.folder.status() is None


@pytest.mark.parametrize("later", ["in the queue", "submitted again", "told by the run"])
def test_what_a_job_left_does_not_count_later(study, tmp_path, say, later):
    run = study.runs[0]
    submission = plan_submission("tiny", tmp_path, [[run]])
    submission.died_path(0).write_text("1\n")
    run.folder.path.mkdir(parents=True)
    run.folder.set_status("interrupted" if later == "told by the run" else "running", step=50)
    if later == "submitted again":
        plan_submission("tiny", tmp_path, [[run]])
    before = run.folder.status()
    backend(study, tmp_path).settle({run.name: "job"} if later == "in the queue" else {})
    assert run.folder.status() == before


def test_a_broken_plan_is_named(study, tmp_path):
    submission = plan_submission("a study, with blanks", tmp_path, [study.runs])
    assert submission.name.startswith("a_study_with_blanks-")
    assert read_submissions(tmp_path) == [submission]
    (submission.folder / "plan.json").write_text("[]")
    with pytest.raises(UserError, match=r"plan.json is broken: it holds no groups of runs"):
        read_submissions(tmp_path)


def test_what_is_missing_is_named(study, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="no sbatch and srun on this machine"):
        backend(study, tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match="needs submitit: pip install submitit"):
        backend(study, tmp_path)


def test_processes_that_do_not_fit_are_refused_with_the_name_of_their_run(study, tmp_path, say):
    with pytest.raises(UserError, match=r"r1_100: processes.count = 1 with .* on 2 nodes"):
        SlurmBackend(study, tmp_path, Resources(nodes=2))


def test_options_of_another_backend_are_refused(sweep, tmp_path):
    status, output, errors = sweep(tmp_path, PLANNED, "--slurm_gpus=1")
    assert (status, output) == (2, "")
    assert errors == ("error: --slurm_gpus with --backend=local; allowed with --backend=slurm\n")


def test_waiting_can_be_given_up(study, tmp_path, say, start):
    submission = plan_submission("tiny", tmp_path, [study.runs])
    say(("17", submission.name, "N/A", "RUNNING", "None"))
    process = start(tmp_path, PLANNED, "--backend=slurm", "--wait", PATH=os.environ["PATH"])
    assert "3 in the queue; 0 submitted" in process.stdout.readline()
    asked = tmp_path / "bin" / "asked"  # by the call itself, and when it waits
    wait_until(lambda: asked.read_text().count("\n") >= 2, "the wait")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert output.startswith("no longer waiting; the jobs go on\nlook again: python -m launch")
