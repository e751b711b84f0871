"""Trains one run.

    python -m looped_jax.train --config=configs/quickstart.py --workdir=runs/one
    python -m looped_jax.train --config=configs/base.py --workdir=runs/wide --config.model.width=128

Typed again, it goes on from the last checkpoint; a finished run only says its result.

    JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=64 python -m looped_jax.train --config=… --plan

trains nothing and says what a run takes on that many devices: parameters, FLOPs, bytes.
"""

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags
from rich.console import Console

from looped_jax import cli, cpu_devices, peers, processes
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.interruption import Interrupted
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from looped_jax.training.checkpoints import Resume, SaveFailed
from looped_jax.training.crash import crashes_told
from looped_jax.training.plan import plan
from looped_jax.training.reporting import Diverged
from looped_jax.training.trainer import train

FAILED_STATUS = 1


def define_flags() -> None:
    config_flags.DEFINE_config_file("config", None, "What to train: configs/NAME.py.")
    flags.DEFINE_string("workdir", None, "The run folder; made if it does not exist.")
    flags.DEFINE_enum(
        "resume", "may", ["may", "must", "no"],
        "may: go on from a checkpoint if there is one; must: refuse to start without one; "
        "no: refuse to start where there is one, or a finished run.",
    )  # fmt: skip
    flags.DEFINE_bool("plan", False, "Compile, say what the run will take, and end.")
    flags.DEFINE_string(
        "topology", "",
        "Devices that are not here, for --plan to compile for and to say how fast a step can be: "
        "v5e:2x4, v5p:2x2x2, v6e:2x4 (needs requirements-tpu-compile.txt), or H100:8, H200:8.",
    )  # fmt: skip
    flags.DEFINE_float(
        "device_memory", None,
        "Bytes of memory of a device, for --plan to say what would fit (80e9: H100). Default: what "
        "the devices say; simulated ones say nothing.",
    )  # fmt: skip
    flags.mark_flag_as_required("config")


def main(_: list[str]) -> int:
    values = flags.FLAGS
    if values.plan:
        cpu_devices.use_cores()
        say = lambda text: print(text, file=sys.stderr, flush=True)
        print(plan(resolve(values.config), values.device_memory, say, values.topology).table())
        return 0
    if values.topology:
        raise UserError(f"--topology={values.topology} without --plan; allowed with it")
    if values.device_memory is not None:
        raise UserError(f"--device_memory={values.device_memory:g} without --plan; allowed with it")
    if values.workdir is None:
        raise UserError("--workdir is missing; required: the run folder, or --plan")
    of_run = resolve(values.config).processes
    folder = RunFolder(values.workdir)
    if of_run.count == 1:
        cpu_devices.use_cores(folder.started_on())
    processes.connect(of_run.count, of_run.connect_seconds)
    try:
        with (
            crashes_told(folder.path) if processes.is_first() else contextlib.nullcontext(),
            peers.watch(),
        ):
            return _train(values.config, folder.path, values.resume)
    except UserError:
        if processes.is_first():
            raise
        return cli.USER_ERROR_STATUS  # process 0 says it


def _train(config: ConfigDict, workdir: Path, resume: Resume) -> int:
    """Trains, says how it ended on process 0, and returns the exit status."""
    display = Display(Console(stderr=True, quiet=not processes.is_first()))
    try:
        with display:
            summary = train(config, workdir, resume, display)
    except Diverged as error:
        display.say(f"diverged: {error}; the last good checkpoint stays")
        return FAILED_STATUS
    except SaveFailed as error:
        display.say(f"failed: {error}")
        return FAILED_STATUS
    except Interrupted as error:
        display.say(f"interrupted: {error}; the same command goes on")
        # A scheduler that sent SIGTERM requeues what ended in good order.
        return cli.INTERRUPTED_STATUS if error.signal_number == signal.SIGINT else 0
    if processes.is_first():
        _say(summary, workdir)
    return 0


def _say(summary: dict[str, Any], folder: Path) -> None:
    print(
        f"{summary['run']}: loss {summary['loss']:.4f} ± {summary['loss_standard_error']:.4f} nats "
        f"({summary['bits_per_byte']:.4f} bits per byte) on held-out text after "
        f"{summary['tokens']:,} tokens, {summary['train_flops']:.3g} FLOPs; "
        f"{folder / 'summary.json'}"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
