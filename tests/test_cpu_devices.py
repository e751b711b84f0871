"""How many devices a CPU is, which of them a run takes, and what becomes of one that waits."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from looped_jax import cpu_devices
from looped_jax.config import resolve
from looped_jax.cpu_devices import CHOSEN, mesh_of_run
from looped_jax.run_folder import RunFolder
from tests.tiny_runs import tiny_config

ROOT = Path(__file__).parents[1]


def run_of(mesh, batch, microbatches, scored):
    run = resolve(tiny_config("data"))
    data = dataclasses.replace(run.data, batch_size=batch, microbatches=microbatches)
    evaluation = dataclasses.replace(run.evaluation, batch_size=scored)
    return dataclasses.replace(run, mesh=mesh, data=data, evaluation=evaluation)


@pytest.mark.parametrize(
    ("mesh", "batches", "started_on", "taken"),
    [
        ("data:-1,fsdp:1,tensor:1", (16, 1, 32), None, (8, 1, 1)),
        ("data:-1,fsdp:1,tensor:1", (16, 4, 32), None, (4, 1, 1)),
        ("data:-1,fsdp:1,tensor:1", (16, 1, 12), None, (4, 1, 1)),
        ("data:-1,fsdp:1,tensor:1", (7, 1, 16), None, (1, 1, 1)),
        ("data:-1,fsdp:2,tensor:2", (8, 1, 8), None, (2, 2, 2)),
        ("data:-1,fsdp:1,tensor:1", (16, 1, 32), 2, (2, 1, 1)),
        ("data:-1,fsdp:1,tensor:1", (64, 1, 64), 32, (8, 1, 1)),
        ("data:2,fsdp:1,tensor:1", (16, 1, 32), None, (2, 1, 1)),
    ],
)
def test_a_run_takes_the_devices_over_which_its_batches_divide(
    monkeypatch, mesh, batches, started_on, taken
):
    monkeypatch.delenv(CHOSEN)  # the tests have 8 devices
    chosen = mesh_of_run(run_of(mesh, *batches), started_on)
    assert tuple(chosen.shape.values()) == taken


def test_a_chosen_number_holds():
    run = run_of("data:-1,fsdp:1,tensor:1", 7, 1, 16)
    assert mesh_of_run(run, started_on=2).size == int(os.environ[CHOSEN]) == 8


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 6})
    assert cpu_devices.cores() == 3
    monkeypatch.setenv("NPROC", "2")
    assert cpu_devices.cores() == 2


# What else XLA waits for before it begins to count.
IMPATIENT = "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1"
# Two devices that meet in a sum, one of which is four seconds late.
LATE = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
from looped_jax import cpu_devices
from looped_jax.training.crash import crashes_told
from looped_jax.run_folder import RunFolder
folder = RunFolder(sys.argv[1])
cpu_devices.PATIENCE_SECONDS = int(sys.argv[2])
cpu_devices.use_cores(started_on=2)
mesh = jax.make_mesh((2,), ("x",), (jax.sharding.AxisType.Auto,))
def late(i):
    time.sleep(4 * int(i[0]))
    return np.asarray(i)
def together(x):
    return jax.lax.psum(jax.pure_callback(late, jax.ShapeDtypeStruct(x.shape, x.dtype), x), "x")
x = jax.sharding.PartitionSpec("x")
with crashes_told(folder.path):
    folder.set_status("running", step=3, devices=2)
    print(jax.jit(jax.shard_map(together, mesh=mesh, in_specs=x, out_specs=x))(jnp.arange(2.0)))
    cpu_devices.use_cores()  # as at the second run of a worker
"""


@pytest.mark.parametrize("patience", [1, cpu_devices.PATIENCE_SECONDS])
def test_a_late_device_is_waited_for_and_a_crash_is_told(tmp_path, patience):
    (tmp_path / "run").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != CHOSEN}
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path / "run"), str(patience)],
        env=environment | {"NPROC": "1", "XLA_FLAGS": IMPATIENT},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    status = RunFolder(tmp_path / "run").status()
    assert (status.step, status.devices) == (3, 2)
    if patience == 1:
        assert done.returncode == -signal.SIGABRT, done.stderr
        assert status.state == "failed"
        assert status.reason == "the process crashed: Fatal Python error: Aborted"
        assert "Fatal Python error: Aborted" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "[1. 1.]\n"), done.stderr
        assert status.state == "running"
