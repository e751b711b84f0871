"""What a job does with a group of runs and with Slurm's signals; the runs themselves are played."""

import signal

import pytest

from launch.slurm import job as slurm_job
from launch.slurm.job import TIME_SIGNAL, run_group
from launch.study import load_study
from looped_jax.interruption import Interrupted
from looped_jax.run_folder import RunFolder
from tests.launch.sweeps import PLANNED


@pytest.fixture
def group(tmp_path, monkeypatch):
    """The orders of a group in a job of one process, with a scontrol that writes down its call."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:/usr/bin:/bin")
    named = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "17"}
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setattr(slurm_job, "_time_is_up", [])
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, TIME_SIGNAL)}
    yield [
        {"folder": str(run.folder.path), "config": run.config}
        for run in load_study(PLANNED, tmp_path).runs
    ]
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def play(monkeypatch):
    """Lets runs end as told, one after another; a callable is called first."""

    def play(*ends):
        waiting, played = list(ends), []

        def execute(folder: RunFolder, config):
            played.append(config["name"])
            folder.path.mkdir(parents=True, exist_ok=True)
            end = waiting.pop(0)
            state = end(folder) if callable(end) else end
            folder.set_status(state, reason="played")
            return state, "played"

        monkeypatch.setattr(slurm_job, "execute", execute)
        return played

    return play


def exit_status(group):
    with pytest.raises(SystemExit) as ended:
        run_group(group)
    return ended.value.code


def stopped_by(number, step):
    """A run that was told to stop, and saved `step`."""

    def run(folder: RunFolder):
        folder.set_status("running", step=step)
        with pytest.raises(Interrupted):  # by the handler that training replaces with its own
            signal.raise_signal(number)
        return "interrupted"

    return run


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (["finished", "finished", "finished"], 0),
        (["diverged", "finished", "finished"], 0),
        (["finished", "failed", "finished"], 1),
    ],
)
def test_a_group_is_run_to_its_end(group, play, tmp_path, ends, status):
    played = play(*ends)
    assert exit_status(group) == status
    assert played == ["r1_100", "r1_200", "r2_100"]
    assert not (tmp_path / "asked").exists()


def test_a_cancelled_job_saves_and_ends(group, play, tmp_path):
    played = play("finished", stopped_by(signal.SIGTERM, 50))
    assert exit_status(group) == 0
    assert played == ["r1_100", "r1_200"]
    assert not (tmp_path / "asked").exists()


def test_when_time_is_up_the_job_saves_and_is_requeued(group, play, tmp_path):
    play(stopped_by(TIME_SIGNAL, 50))
    assert exit_status(group) == 0
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    assert RunFolder(group[0]["folder"]).status().state == "interrupted"


def test_a_job_without_progress_is_not_requeued(group, play, tmp_path):
    play(stopped_by(TIME_SIGNAL, 0))
    assert exit_status(group) == 1
    assert not (tmp_path / "asked").exists()
    status = RunFolder(group[0]["folder"]).status()
    assert status.state == "failed"
    assert status.reason.startswith("no step was saved within the time of a job")


def test_a_requeued_job_does_not_try_again_what_failed(group, play, monkeypatch):
    play("failed", stopped_by(TIME_SIGNAL, 50))
    assert exit_status(group) == 1
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(slurm_job, "_time_is_up", [])
    played = play("finished", "finished")
    assert exit_status(group) == 0
    assert played == ["r1_200", "r2_100"]


def test_another_number_of_processes_than_the_config_says_is_refused(group, play, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert "config.processes.count = 1, and Slurm started 2" in exit_status(group)
