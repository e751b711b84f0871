"""A CPU as devices: one for each core, as far as a run's batches divide over them.

JAX takes a CPU for one device, which uses several cores badly. `JAX_NUM_CPU_DEVICES` chooses the
number instead, and then holds as it stands. A run that goes on takes as many devices as it was
started on, whatever the machine has by then: sums in another order would change its numbers.
"""

import contextlib
import math
import os
import sys
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.config import RunConfig

CHOSEN = "JAX_NUM_CPU_DEVICES"
# How long XLA lets the devices of a CPU wait for one that is behind before it aborts the process:
# 40 seconds, if nothing is said, which a core that others keep busy does not always make.
PATIENCE = "--xla_cpu_collective_call_terminate_timeout_seconds"
PATIENCE_SECONDS = 86_400


def cores() -> int:
    """The cores that this process may use.

    `NPROC`, which XLA reads too, is what a sweep or a job leaves to each of its processes; without
    it, those of the affinity mask.
    """
    if given := os.environ.get("NPROC"):
        return int(given)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def use_cores(started_on: int | None = None) -> None:
    """Makes each core a device. Has to come before JAX starts; later it changes nothing.

    Args:
      started_on: devices that the run at hand was started on; None for a new one.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if PATIENCE not in given:
        os.environ["XLA_FLAGS"] = f"{given} {PATIENCE}={PATIENCE_SECONDS}".strip()
    if CHOSEN not in os.environ:
        with contextlib.suppress(RuntimeError):  # JAX has started: the second run of a worker
            jax.config.update("jax_num_cpu_devices", max(cores(), started_on or 1))


def mesh_of_run(run: RunConfig, started_on: int | None = None) -> Mesh:
    """The run's mesh; of a CPU's devices "data:-1" takes as many as divide every batch.

    Args:
      started_on: as of `use_cores`.

    Raises:
      UserError: as `parallel.mesh_from_text` does.
    """
    devices = jax.devices()
    free = devices[0].platform == "cpu" and CHOSEN not in os.environ and jax.process_count() == 1
    sizes = parallel.mesh_sizes(run.mesh)
    if not free or sizes["data"] != -1:
        return parallel.mesh_from_text(run.mesh)
    fixed = sizes["fsdp"] * sizes["tensor"]
    batches = (run.data.batch_size // run.data.microbatches, run.evaluation.batch_size)
    most = started_on or len(devices)
    ways = _most_ways(batches, sizes["fsdp"], min(most, len(devices)) // fixed)
    return parallel.mesh_from_text(run.mesh, devices[: ways * fixed])


def _most_ways(batches: Sequence[int], fsdp: int, most: int) -> int:
    """The largest size of `data` up to `most`, and at least 1, over which all batches divide."""
    common = math.gcd(*batches)
    return next((ways for ways in range(most, 1, -1) if common % (ways * fsdp) == 0), 1)
