"""What this machine offers to workers: cores or accelerators, and how fast they multiply."""

import functools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path

from looped_jax.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
_SIZE = 1024
_MEMORY_SHARE = 0.9


@dataclass(frozen=True)
class Machine:
    """What JAX finds here.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      devices: how many of these.
      flops_per_second: rate of a float32 product of two 1024 x 1024 matrices, on all cores of the
        CPU or on one accelerator.
    """

    platform: str
    devices: int
    flops_per_second: float


@functools.cache
def this_machine() -> Machine:
    """Asks a process of its own, since who asks JAX for an accelerator occupies it."""
    command = [sys.executable, "-m", "launch.machine"]
    asked = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, check=True)
    return Machine(**json.loads(asked.stdout))


def child_environment() -> dict[str, str]:
    """The environment of a child that imports this project, wherever it was started from."""
    path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def worker_environments(workers: int | None) -> list[dict[str, str]]:
    """What each worker process gets in its environment, so that they share the machine.

    Args:
      workers: how many; None for one a core, or one an accelerator.

    Raises:
      UserError: a number that does not go with this machine.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers={workers}; allowed: at least 1")
    machine = this_machine() if _may_have_accelerators() else None
    if machine is None or machine.platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        count = workers or cores
        return [{"NPROC": str(max(1, cores // count))}] * count  # threads of XLA
    if machine.platform == "gpu":
        return _gpu_environments(machine.devices, workers)
    if workers not in (None, 1):
        raise UserError(f"--workers={workers}; allowed on a {machine.platform}: 1, for all chips")
    return [{}]


def _gpu_environments(devices: int, workers: int | None) -> list[dict[str, str]]:
    """One GPU for each worker; when there are more workers, they share memory evenly."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))
    gpus = visible.split(",")
    count = workers or len(gpus)
    environments = [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} for i in range(count)]
    sharing = -(-count // len(gpus))
    if sharing > 1 and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
        share = f"{_MEMORY_SHARE / sharing:.3f}"
        environments = [{**e, "XLA_PYTHON_CLIENT_MEM_FRACTION": share} for e in environments]
    return environments


def _may_have_accelerators() -> bool:
    plugins = metadata.entry_points(group="jax_plugins")
    return bool(plugins) or util.find_spec("libtpu") is not None


def _measure() -> Machine:
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(jnp.matmul)
    a = jnp.full((_SIZE, _SIZE), 0.5, jnp.float32)
    multiply(a, a).block_until_ready()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        multiply(a, a).block_until_ready()
        times.append(time.perf_counter() - began)
    return Machine(jax.default_backend(), jax.local_device_count(), 2 * _SIZE**3 / min(times))


if __name__ == "__main__":
    print(json.dumps(asdict(_measure())))
