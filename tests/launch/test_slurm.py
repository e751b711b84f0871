"""Studies on a real Slurm: submitted, looked at, disturbed, finished by further calls."""

import os
import re
import signal
import subprocess

import pytest

from launch.resources import Resources
from launch.slurm import SlurmBackend
from launch.study import load_study
from tests.launch.sweeps import (
    SLURM,
    folders,
    states,
    wait_until,
)


@pytest.fixture(scope="module")
def cluster(slurm):
    """Lets this process talk to the Slurm of the tests, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm)
        yield slurm


@pytest.fixture
def submit(cluster, sweep):
    """Runs a sweep with the Slurm backend: (exit status, output, errors)."""

    def submit(out, *arguments, study=SLURM):
        options = ("--backend=slurm", "--slurm_tasks=2", *arguments)
        return sweep(out, study, *options, SLURM_CONF=cluster)

    return submit


def backend(out):
    return SlurmBackend(load_study(SLURM, out), out, Resources(tasks=2))


def wait_for_steps(out, name):
    def saved():
        found = folders(out)
        status = found[name].status() if name in found else None
        return status is not None and (status.step or 0) >= 50

    wait_until(saved, f"a checkpoint of {name}")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Of one study, in the hands of one test after another."""
    return tmp_path_factory.mktemp("slurm") / "fates"


def test_a_study_is_submitted_once(out, submit):
    status, output, errors = submit(out)
    assert (status, errors) == (0, "")
    assert re.search(r"^study fates: 6 runs, .* FLOPs, 0 in the queue; 6 submitted$", output, re.M)
    assert re.search(r"^pair .* \d+(_\d)? pending", output, re.M)
    assert "look again, and submit what is missing by then: python -m launch.sweep" in output

    status, output, errors = submit(out)
    assert (status, errors) == (0, "")
    assert " in the queue; 0 submitted" in output


def test_disturbed_runs_end_as_they_should(out, submit, cluster):
    for name in ("cancelled", "out_of_time", "killed"):
        wait_for_steps(out, name)
        job = backend(out).jobs()[name]
        pid = folders(out)[name].status().pid
        if name == "cancelled":
            subprocess.run(["scancel", job.id], check=True)
        else:  # SIGUSR2 is what Slurm sends before the time limit
            os.kill(pid, signal.SIGUSR2 if name == "out_of_time" else signal.SIGKILL)
    wait_until(lambda: not backend(out).jobs(), "the end of all jobs")
    assert states(out) == {
        "cancelled": "interrupted", "out_of_time": "finished", "killed": "running",
        "alone": "finished", "pair": "finished", "refused": "failed",
    }  # fmt: skip


def test_a_second_call_goes_on_and_lists_what_failed(out, submit):
    status, output, errors = submit(out, "--wait")
    assert (status, errors) == (1, "")
    assert "1 submitted" in output
    assert re.search(r"^finished cancelled: loss \d\.\d{4} nats", output, re.M)
    missing = output[output.index("2 of 6 runs did not finish:") :]
    assert "failed killed: its job exited with status 137" in missing
    assert re.search(r"^failed refused: .*model.vocab_size = 200", missing, re.M)
    assert re.search(r"output.log ends:\n    error: model.vocab_size = 200", missing)


def test_failed_runs_are_submitted_when_asked_for(out, submit):
    status, output, _ = submit(out)
    assert status == 1
    assert "4 finished, 2 failed, 0 in the queue; 0 submitted" in output
    assert re.search(r"failed runs are tried again by: python .* --retry_failed$", output, re.M)
    status, output, _ = submit(out, "--retry_failed", "--slurm_job=shape", "--wait")
    assert status == 1
    assert "2 submitted" in output
    assert states(out) == dict.fromkeys(states(out), "finished") | {"refused": "failed"}


def test_disturbances_do_not_change_numbers(out):
    found = {name: f.read_summary()["loss"] for name, f in folders(out).items() if f.is_finished()}
    assert found["cancelled"] == found["out_of_time"] == found["killed"]
    assert found["pair"] == pytest.approx(found["alone"], abs=1e-4)
    logs = "".join(path.read_text() for path in out.glob("slurm/*/*_1_log.out"))
    assert "process 1 of 2: " in logs


def test_what_slurm_refuses_is_told_and_leaves_nothing(tmp_path, submit):
    status, output, errors = submit(tmp_path, "--slurm_partition=none")
    assert (status, output) == (2, "")
    assert errors.endswith("error: Slurm refuses the jobs: sbatch: error: invalid partition "
                           "specified: none\n")  # fmt: skip
    assert not list((tmp_path / "slurm").iterdir())
