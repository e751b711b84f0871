"""Every config and study of the tree on 1, 8 and 128 devices: shapes only, nothing compiled."""

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from looped_jax import parallel
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.training.state import init_params

ROOT = Path(__file__).parents[2]
DEVICES = (1, 8, 128)
H100 = 80e9  # bytes
ARGUMENTS = {
    "elastic_depth": ("", "size=86m", "size=huginn"),
    "readout": ("", "size=44m", "size=129m", "size=1.4b", "size=ouro"),
    "isodepth": ("", "r=1,s=40", "injection=hyperconnect"),
}


def names(folder):
    return [p.stem for p in sorted((ROOT / folder).glob("*.py")) if p.stem != "__init__"]


def mesh_on(text, devices):
    sizes = parallel.mesh_sizes(text)
    fixed = math.prod(size for size in sizes.values() if size != -1)
    sizes = {axis: devices // fixed if size == -1 else size for axis, size in sizes.items()}
    axes = parallel.MESH_AXES
    return AbstractMesh(tuple(sizes[a] for a in axes), axes, (AxisType.Auto,) * len(axes))


def check_batch(run, mesh):
    """The batch divides over the mesh, or the message says over what it does not."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    if run.data.batch_size % (ways * run.data.microbatches):
        with pytest.raises(UserError, match=f"data.batch_size = {run.data.batch_size} .* = {ways}"):
            parallel.check_batch(mesh, "data", run.data.batch_size, run.data.microbatches)
    else:
        parallel.check_batch(mesh, "data", run.data.batch_size, run.data.microbatches)


@pytest.mark.parametrize(
    ("name", "arg"),
    [(name, arg) for name in names("configs") for arg in ARGUMENTS.get(name, ("",))],
)
def test_a_config_lies_on_devices(name, arg):
    get_config = importlib.import_module(f"configs.{name}").get_config
    run = resolve(get_config(arg) if arg else get_config())
    assert run.steps >= 1
    boxed = jax.eval_shape(lambda: init_params(run.model, 0))
    leaves = jax.tree.leaves(boxed)
    for devices in DEVICES:
        if devices % parallel.mesh_sizes(run.mesh)["fsdp"]:
            continue
        mesh = mesh_on(run.mesh, devices)
        check_batch(run, mesh)
        placed = jax.tree.leaves(parallel.parameter_shardings(boxed, mesh))
        of_device = sum(
            math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for sharding, leaf in zip(placed, leaves, strict=True)
        )
        # Parameters, gradients and two moments; the rest is for activations.
        assert 4 * of_device < H100 / 2


@pytest.mark.parametrize("name", names("configs/studies"))
def test_a_study_lies_on_devices(name):
    runs = importlib.import_module(f"configs.studies.{name}").get_runs()
    for config in (runs[0], runs[-1]):
        run = resolve(config)
        for devices in DEVICES:
            check_batch(run, mesh_on(run.mesh, devices))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "devices"),
    [("elastic_depth.py:size=huginn", 128), ("isodepth.py:r=1,s=40,flops=2.15e19", 8)],
)
def test_the_largest_models_fit_the_devices_that_they_name(config, devices):
    done = subprocess.run(
        [sys.executable, "-m", "looped_jax.train", f"--config=configs/{config}", "--plan",
         f"--device_memory={H100}"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}, cwd=ROOT, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\nit fits: " in done.stdout
    assert "rematerialization" not in done.stderr
