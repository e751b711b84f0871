"""Two processes of jax.distributed share checkpoints: process 0 decides, both agree."""

import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from looped_jax.training.checkpoints import Checkpoints

ROOT = Path(__file__).parents[2]

PROCESS = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 4)
address, process, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) / "checkpoints"
jax.distributed.initialize(address, 2, process, heartbeat_timeout_seconds=10)
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from looped_jax.errors import UserError
from looped_jax.training import checkpoint_files
from looped_jax.training.checkpoints import Checkpoints, SaveFailed, restore_params
from tests.training import faults

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
state = jax.jit(
    lambda step: {"params": {"w": jax.random.normal(jax.random.key(step), (64, 8))}, "step": step},
    out_shardings={"params": {"w": split}, "step": whole},
)
equal = jax.jit(lambda a, b: (a["params"]["w"] == b["params"]["w"]).all())

def report(*words):  # standard output belongs to gloo
    with open(f"{sys.argv[3]}/report-{process}", "a") as file:
        print(*words, file=file)

def no_space(*args):
    raise OSError(28, "No space left on device")

read = []
hashed = checkpoint_files.sha256_of_file
checkpoint_files.sha256_of_file = lambda path: read.append(path) or hashed(path)

with Checkpoints(folder, keep=2) as checkpoints:
    report(checkpoints.restore(state(0), "may"))
    for step in (1, 2, 3):
        checkpoints.save(step, state(step), {"step": step})
    checkpoints.wait()
    if process == 0:
        faults.flip_bit(faults.array_file(folder / "3"))
    restored = checkpoints.restore(state(0), "must")
    report(restored.step, restored.extra, bool(equal(restored.state, state(2))))
    here = [path for path in read if path.parts[len(folder.parts)] == "2"]
    files = checkpoint_files.read_json(folder / "2" / "digests.json")["files"]
    report("read half", abs(2 * len(here) - len(files)) <= 1)
    try:
        checkpoints.restore(state(0), "no")
    except UserError as error:
        report("refused", "newest: step 2" in str(error))
    report(restore_params(folder, state(0)["params"]).step)
    if process == 0:
        checkpoint_files.write_json = no_space
    checkpoints.save(9, state(9), {})
    try:
        checkpoints.wait()
    except SaveFailed as error:
        report("failed", "No space left on device" in str(error))
"""


@pytest.mark.slow
def test_two_processes_agree_and_one_restores_what_they_saved(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, address, str(i), str(tmp_path)],
            cwd=ROOT,
        )
        for i in (0, 1)
    ]
    try:
        for process in processes:
            process.wait(120)
    finally:
        for process in processes:
            process.kill()
    expected = ["None", "2 {'step': 2} True", "read half True", "refused True", "2", "failed True"]
    for process in (0, 1):
        assert (tmp_path / f"report-{process}").read_text().splitlines() == expected

    shapes = {"params": {"w": jnp.ones((64, 8))}, "step": jnp.int32(0)}
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        restored = checkpoints.restore(shapes, "must")
    assert restored.step == restored.state["step"] == 2
    saved = jax.random.normal(jax.random.key(2), (64, 8))
    assert (restored.state["params"]["w"] == saved).all()
