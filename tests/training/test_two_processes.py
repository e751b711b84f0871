"""Two real processes train one run: the same losses as one, and one fate for both."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from looped_jax.training.trainer import train
from tests.tiny_runs import tiny_config

ROOT = Path(__file__).parents[2]

# The command, in which one process sends itself a signal, fails (0) or finds the disk full (-1),
# before a step.
COMMAND = """
import os, resource, sys, time
from looped_jax import cli, train
from looped_jax.training import trainer
rank, number, at = (int(sys.argv.pop(1)) for _ in range(3))
workdir = next(a for a in sys.argv if a.startswith("--workdir=")).partition("=")[2]
compiled = trainer.train_step

def signalled(*args):
    step, count = compiled(*args), 0
    def stepping(*inputs):
        nonlocal count
        count += 1
        if count == at and int(os.environ["JAX_PROCESS_ID"]) == rank:
            if number < 0:  # for a checkpoint's arrays after the one that is complete, not for logs
                while not os.path.exists(f"{workdir}/checkpoints/4"):
                    time.sleep(0.05)
                resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
            else:
                os.kill(os.getpid(), number) if number else 1 / 0
        return step(*inputs)
    return stepping

trainer.train_step = signalled
train.define_flags()
cli.run(train.main)
"""


def start(tmp_path, data, *, count=2, ranks=(0, 1), rank=0, number=0, at=0, flags=()):
    """Starts `ranks` of `count`; `rank` gets a signal at a step. Output goes to files rank-N."""
    config_file = tmp_path / "config.py"
    config_file.write_text(
        "from tests.tiny_runs import tiny_config\n"
        f"def get_config():\n    c = tiny_config({str(data.folder)!r})\n"
        "    c.mesh = 'data:-1,fsdp:1,tensor:1'\n    return c\n"
    )
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, "-c", COMMAND, str(rank), str(number), str(at)]
    command += [
        f"--config={config_file}",
        f"--workdir={tmp_path / 'run'}",
        f"--config.processes.count={count}",
        *flags,
    ]
    started = []
    for each in ranks:
        environment = os.environ | {
            "JAX_NUM_CPU_DEVICES": "1", "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(each),
        }  # fmt: skip
        with open(tmp_path / f"rank-{each}", "w") as output:
            started.append(
                subprocess.Popen(
                    command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
                )
            )
    return started


def statuses(processes, seconds=150):
    deadline = time.monotonic() + seconds
    try:
        return [process.wait(max(1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()


def said(tmp_path, rank):
    return (tmp_path / f"rank-{rank}").read_text()


def told(tmp_path, beginning):
    """Lines of both processes that hold this."""
    lines = [line for rank in (0, 1) for line in said(tmp_path, rank).splitlines()]
    return [line for line in lines if beginning in line]


def losses(folder):
    """Training losses of all steps, then the validation loss."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = {line["step"]: line["loss"] for line in map(json.loads, lines)}
    assert list(found) == list(range(1, 13))
    return [*found.values(), RunFolder(folder).read_summary()["loss"]]


def train_alone(data, folder):
    train(tiny_config(data.folder), folder, "may", Display(Console(quiet=True)))
    return losses(folder)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    return train_alone(data, tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.slow
def test_two_processes_train_what_one_does(data, alone, tmp_path):
    assert statuses(start(tmp_path, data)) == [0, 0], said(tmp_path, 0) + said(tmp_path, 1)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=2e-5)
    for rank in (0, 1):
        assert f"process {rank} of 2: Connecting to JAX distributed service" in said(tmp_path, rank)
    assert "nats" in said(tmp_path, 0)
    assert "nats" not in said(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_stops_both_and_one_process_goes_on(data, alone, tmp_path, rank):
    started = start(tmp_path, data, rank=rank, number=signal.SIGTERM, at=6)
    assert statuses(started) == [0, 0]
    stopped = told(tmp_path, "SIGTERM")
    step = RunFolder(tmp_path / "run").status().step
    assert step in (6, 7)
    assert stopped == [f"interrupted: SIGTERM after step {step}; the same command goes on"]
    assert train_alone(data, tmp_path / "run") == pytest.approx(alone, abs=2e-5)


@pytest.mark.slow
def test_two_processes_go_on_with_what_one_began(data, alone, tmp_path):
    started = start(tmp_path, data, count=1, ranks=(0,), number=signal.SIGTERM, at=6)
    assert statuses(started) == [0], said(tmp_path, 0)
    assert RunFolder(tmp_path / "run").status().step == 6
    assert statuses(start(tmp_path, data, flags=["--resume=must"])) == [0, 0]
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_dead_peer_ends_the_other_and_nothing_is_lost(data, alone, tmp_path, rank):
    started = start(tmp_path, data, rank=rank, number=signal.SIGKILL, at=6)
    assert started[rank].wait(150) == -signal.SIGKILL
    assert statuses([started[1 - rank]], seconds=60) == [1]
    reason = f"process {rank}: it ended without a word: it was killed, or its machine died"
    assert told(tmp_path, "failed: ") == [f"failed: {reason}"]
    status = RunFolder(tmp_path / "run").status()
    assert (status.state, status.reason) == ("failed", reason)
    assert statuses(start(tmp_path, data)) == [0, 0]
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_of_one_ends_all_with_its_reason(data, tmp_path, rank):
    assert statuses(start(tmp_path, data, rank=rank, number=0, at=6), seconds=90) == [1, 1]
    reason = f"process {rank}: ZeroDivisionError: division by zero"
    assert told(tmp_path, "failed: ") == [f"failed: {reason}"]
    status = RunFolder(tmp_path / "run").status()
    assert (status.state, status.reason, status.saved) == ("failed", reason, 4)


@pytest.mark.slow
def test_a_full_disk_ends_all_and_the_last_checkpoint_stays(data, alone, tmp_path):
    assert statuses(start(tmp_path, data, rank=0, number=-1, at=6), seconds=90) == [1, 1]
    (failed,) = told(tmp_path, "failed: ")
    assert "process 0: SaveFailed: cannot save the checkpoint of step 8 (step 4 is unt" in failed
    assert "Traceback" not in said(tmp_path, 0) + said(tmp_path, 1)
    assert RunFolder(tmp_path / "run").status().state == "failed"
    assert statuses(start(tmp_path, data, flags=["--resume=must"])) == [0, 0]
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=2e-5)


@pytest.mark.slow
def test_an_error_of_one_is_the_error_of_all(data, tmp_path):
    broken = "--config.data.folder=nowhere"
    assert statuses(start(tmp_path, data, flags=[broken])) == [2, 2]
    (error,) = told(tmp_path, "error: ")
    assert error.startswith("error: process 0: data folder nowhere does not exist")


@pytest.mark.slow
def test_they_give_up_waiting_with_a_message(data, tmp_path):
    for rank in (0, 1):
        limit = "--config.processes.connect_seconds=4"
        assert statuses(start(tmp_path, data, ranks=(rank,), flags=[limit]), seconds=60) == [2]
        assert f"error: process {rank} of 2 has not met the others after " in said(tmp_path, rank)
        assert "Connecting to JAX distributed service on localhost" in said(tmp_path, rank)
