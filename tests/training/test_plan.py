import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from looped_jax import parallel
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.training import state as states
from looped_jax.training.plan import plan
from looped_jax.training.step import lower_step
from tests.tiny_runs import tiny_config

ROOT = Path(__file__).parents[2]


def planned(mesh):
    config = tiny_config("nowhere")
    config.mesh = mesh
    return resolve(config)


@pytest.mark.parametrize("mesh", ["data:1,fsdp:1,tensor:1", "data:2,fsdp:2,tensor:2"])
def test_bytes_are_those_that_lie_on_a_device(mesh):
    run = planned(mesh)
    found = plan(run)
    on = parallel.mesh_from_text(mesh)
    with parallel.active(on):
        state = states.init_state(run.model, states.make_optimizer(run.optimizer.rule), on, 0)

    def on_first_device(tree):
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))

    parts = found.bytes_per_device
    assert parts["parameters"] == on_first_device(state.params)
    assert parts["optimiser state"] == on_first_device(state.optimizer)
    assert parts["batch"] == 8 * 17 * 4 // (on.shape["data"] * on.shape["fsdp"])
    # The compiler counts the same, plus the schedule and the seed.
    arguments = lower_step(run, on).compile().memory_analysis().argument_size_in_bytes
    assert 0 <= arguments - sum(parts[name] for name in parts if name != "temporary") < 256
    assert found.peak_bytes >= sum(parts.values())
    assert found.parameters.total == sum(leaf.size for leaf in jax.tree.leaves(state.params))


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"for 16 devices; there are 8"):
        plan(planned("data:16,fsdp:1,tensor:1"))
    config = tiny_config("nowhere")
    config.mesh, config.data.microbatches = "data:4,fsdp:1,tensor:1", 4
    with pytest.raises(UserError, match=r"batch_size = 8 .* 4 devices x 4 microbatches"):
        plan(resolve(config))


def test_the_command_needs_neither_data_nor_a_folder():
    done = subprocess.run(
        [sys.executable, "-m", "looped_jax.train", "--config=configs/quickstart.py", "--plan",
         "--config.data.folder=nowhere",
         "--config.mesh=data:2,fsdp:2,tensor:1"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "4"}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rematerialization" not in done.stderr  # XLA's warning of a sharding that it gives up
    assert "mesh data:2,fsdp:2,tensor:1: 4 x cpu" in done.stdout
    assert "\nattention: xla (model.attention = 'xla', platform 'cpu')\n" in done.stdout
    assert re.search(r"^bytes per device, at the peak +[\d.]+ MiB$", done.stdout, re.M)
    assert re.search(r"^training FLOPs per token +[\d.e+]+$", done.stdout, re.M)


def test_training_needs_a_folder():
    done = subprocess.run(
        [sys.executable, "-m", "looped_jax.train", "--config=configs/base.py"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "error: --workdir is missing; required: the run folder, or --plan\n"
