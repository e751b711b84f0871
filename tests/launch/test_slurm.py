"""Studies on a real Slurm: submitted, looked at, disturbed, finished by further calls.

One study goes through all of it, since jobs take their time: each fixture is one thing that happens
to it, on top of the one before, and each test looks at what one of them left. Tests therefore run
in any order and alone; without a Slurm all are skipped.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from launch.slurm.backend import SlurmBackend
from launch.slurm.resources import Resources
from launch.study import load_study
from tests.launch.sweeps import SLURM, Sweeps, folders, states, wait_until

HELD = ("cancelled", "out_of_time")  # as many as the node has processors


class Call(NamedTuple):
    """What a call of `launch.sweep` left."""

    status: int
    output: str
    errors: str
    states: dict[str, str]


@pytest.fixture(scope="module")
def cluster(slurm):
    """Lets this process talk to the Slurm of the tests, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm)
        yield slurm


@pytest.fixture(scope="module")
def submit(cluster, data, environment) -> Callable[..., Call]:
    """Runs a sweep with the Slurm backend to its end."""
    with contextlib.closing(Sweeps(data, environment)) as sweeps:

        def submit(out: Path, *arguments: str) -> Call:
            options = ("--backend=slurm", "--slurm_tasks=2", *arguments)
            ended = sweeps.run(out, SLURM, *options, SLURM_CONF=cluster)
            return Call(*ended, states(out))

        yield submit


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("slurm") / "fates"


@pytest.fixture(scope="module")
def submitted(out, submit) -> tuple[Call, Call]:
    """The study is submitted, and the same command is run again while two of its runs are on."""
    first = submit(out)
    for name in HELD:  # a busy machine may take longer for the second call than they do
        os.kill(pid_after_steps(out, name), signal.SIGSTOP)
    return first, submit(out)


@pytest.fixture(scope="module")
def disturbed(out, cluster, submitted) -> dict[str, str]:
    """Three of its runs are disturbed, and all jobs end. Returns the states of the runs."""
    for name in (*HELD, "killed"):
        pid = pid_after_steps(out, name)
        if name == "cancelled":
            subprocess.run(["scancel", backend(out).jobs()[name].id], check=True)
        else:  # SIGUSR2 is what Slurm sends before the time limit
            os.kill(pid, signal.SIGUSR2 if name == "out_of_time" else signal.SIGKILL)
        if name in HELD:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not backend(out).jobs(), "the end of all jobs")
    return states(out)


@pytest.fixture(scope="module")
def went_on(out, submit, disturbed) -> Call:
    """The same command is typed, and waited for."""
    return submit(out, "--wait")


@pytest.fixture(scope="module")
def retried(out, submit, went_on) -> tuple[Call, Call]:
    """It is typed once more, and then told to try again what failed."""
    return submit(out), submit(out, "--retry_failed", "--slurm_job=shape", "--wait")


def backend(out: Path) -> SlurmBackend:
    return SlurmBackend(load_study(SLURM, out), out, Resources(tasks=2))


def pid_after_steps(out: Path, name: str) -> int:
    """Waits for a run's first checkpoint, and returns the process that trains it."""

    def saved():
        found = folders(out)
        status = found[name].status() if name in found else None
        return status is not None and (status.step or 0) >= 50

    wait_until(saved, f"a checkpoint of {name}")
    return folders(out)[name].status().pid


def test_a_study_is_submitted_once(submitted):
    first, second = submitted
    assert (first.status, first.errors) == (0, "")
    heading = r"^study fates: 6 runs, .* FLOPs, 0 in the queue; 6 submitted$"
    assert re.search(heading, first.output, re.M)
    assert re.search(r"^pair .* \d+(_\d)? pending", first.output, re.M)
    assert "look again, and submit what is missing by then: python -m launch.sweep" in first.output

    assert (second.status, second.errors) == (0, "")
    assert " in the queue; 0 submitted" in second.output


def test_disturbed_runs_end_as_they_should(disturbed):
    assert disturbed == {
        "cancelled": "interrupted", "out_of_time": "finished", "killed": "running",
        "alone": "finished", "pair": "finished", "refused": "failed",
    }  # fmt: skip


def test_a_second_call_goes_on_and_lists_what_failed(went_on):
    assert (went_on.status, went_on.errors) == (1, "")
    assert "1 submitted" in went_on.output
    assert re.search(r"^finished cancelled: loss \d\.\d{4} nats", went_on.output, re.M)
    missing = went_on.output[went_on.output.index("2 of 6 runs did not finish:") :]
    assert "failed killed: its job exited with status 137" in missing
    assert re.search(r"^failed refused: .*model.vocab_size = 200", missing, re.M)
    assert re.search(r"output.log ends:\n    error: model.vocab_size = 200", missing)


def test_failed_runs_are_submitted_when_asked_for(retried):
    again, retry = retried
    assert again.status == 1
    assert "4 finished, 2 failed, 0 in the queue; 0 submitted" in again.output
    asked = r"failed runs are tried again by: python .* --retry_failed$"
    assert re.search(asked, again.output, re.M)
    assert retry.status == 1
    assert "2 submitted" in retry.output
    assert retry.states == dict.fromkeys(retry.states, "finished") | {"refused": "failed"}


def test_disturbances_do_not_change_numbers(out, retried):
    finished = {name: folder for name, folder in folders(out).items() if folder.is_finished()}
    found = {name: folder.read_summary()["loss"] for name, folder in finished.items()}
    assert found["cancelled"] == found["out_of_time"] == found["killed"]
    assert found["pair"] == pytest.approx(found["alone"], abs=1e-4)
    logs = "".join(path.read_text() for path in out.glob("slurm/*/*_1_log.out"))
    assert "process 1 of 2: " in logs


def test_what_slurm_refuses_is_told_and_leaves_nothing(tmp_path, submit):
    refused = submit(tmp_path, "--slurm_partition=none")
    assert (refused.status, refused.output) == (2, "")
    assert refused.errors.endswith("error: Slurm refuses the jobs: sbatch: error: invalid "
                                   "partition specified: none\n")  # fmt: skip
    assert not list((tmp_path / "slurm").iterdir())
