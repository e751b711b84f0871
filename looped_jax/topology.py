"""Devices that are not here: TPUs, whose compiler runs on any machine, and GPUs by data sheet.

`mesh_of("v5e:2x4", …)` is a mesh of eight TPU v5e that programs can be compiled for, not run on;
the compiler is the package libtpu (requirements-tpu-compile.txt). The mesh of "H100:8" is abstract:
shapes, shardings and counts, and no compiler.
"""

import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from looped_jax import parallel
from looped_jax.errors import UserError

# GPUs, by the names that JAX gives them.
GPUS = {"H100": "NVIDIA H100", "H200": "NVIDIA H200"}
EXAMPLES = "v5e:2x4, v5p:2x2x2, v6e:2x4"


def mesh_of(topology: str, mesh: str) -> Mesh | AbstractMesh:
    """The mesh that a text like "data:-1,fsdp:2,tensor:1" describes on a topology's devices.

    Raises:
      UserError: libtpu is not installed, there is no such topology, or the mesh is not
        for so many devices.
    """
    chip, _, count = topology.partition(":")
    if chip in GPUS:
        if not count.isdigit() or count == "0":
            raise UserError(f"topology {topology!r}; allowed: {chip}: and a number of GPUs")
        sizes = parallel.sizes_for(mesh, int(count))
        device = AbstractDevice(device_kind=GPUS[chip], num_cores=1, platform="gpu")
        axes = (AxisType.Auto,) * len(sizes)
        return AbstractMesh(tuple(sizes.values()), tuple(sizes), axes, abstract_device=device)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"topology {topology!r} needs the TPU compiler: "
            "pip install -r requirements-tpu-compile.txt"
        )
    # There is no TPU machine to ask for its surroundings, and no chip that two would share.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    try:
        described: Any = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except (jax.errors.JaxRuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"topology {topology!r}; such as {EXAMPLES} are known: {reason}") from None
    return parallel.mesh_from_text(mesh, list(described.devices))
