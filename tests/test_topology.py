"""Meshes of devices that are not here, and the step as the TPU compiler takes it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from looped_jax import topology
from looped_jax.errors import UserError

ROOT = Path(__file__).parents[1]
HAS_COMPILER = importlib.util.find_spec("libtpu") is not None


def test_gpus_are_planned_by_their_data_sheet():
    mesh = topology.mesh_of("H100:8", "data:-1,fsdp:2,tensor:1")
    assert dict(mesh.shape) == {"data": 4, "fsdp": 2, "tensor": 1}
    with pytest.raises(UserError, match=r"topology 'H100:2x4'; allowed: H100: and a number"):
        topology.mesh_of("H100:2x4", "data:-1,fsdp:1,tensor:1")
    with pytest.raises(UserError, match=r"is for 3 x n devices; there are 8"):
        topology.mesh_of("H100:8", "data:-1,fsdp:3,tensor:1")


@pytest.mark.skipif(HAS_COMPILER, reason="the TPU compiler is installed")
def test_the_tpu_compiler_that_is_missing_is_named():
    message = r"topology 'v5e:2x4' needs .* pip install -r requirements-tpu-compile.txt"
    with pytest.raises(UserError, match=message):
        topology.mesh_of("v5e:2x4", "data:-1,fsdp:1,tensor:1")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="pip install -r requirements-tpu-compile.txt")
@pytest.mark.parametrize(
    ("config", "devices", "mesh"),
    [
        *(
            (f"isodepth.py:r={r},s={s}", "v5e:2x4", mesh)
            for s, meshes in {
                10: ("data:8,fsdp:1,tensor:1", "data:2,fsdp:4,tensor:1"),
                34: ("data:1,fsdp:8,tensor:1",),
            }.items()
            for r in (1, 4)
            for mesh in meshes
        ),
        ("isodepth.py:r=4,s=12", "v5e:2x4", "data:2,fsdp:2,tensor:2"),
        ("elastic_depth.py:size=huginn", "v5p:4x4x4", "data:8,fsdp:8,tensor:1"),
    ],
)
def test_the_step_compiles_for_tpus(config, devices, mesh):
    """A minute or two each; the compiler warns of activations that it gathers whole."""
    done = subprocess.run(
        [sys.executable, "-m", "looped_jax.train", f"--config=configs/{config}", "--plan",
         f"--topology={devices}", f"--config.mesh={mesh}"],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\nattention: splash" in done.stdout
    assert "Involuntary full rematerialization" not in done.stderr
