"""One run in this process: what workers and jobs do with a run that they are given.

SIGTERM asks a run to save a checkpoint and end: the training loop handles it itself; wherever else
a process may be, `interrupt` is its handler.
"""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from launch.local import OUTPUT
from looped_jax import processes
from looped_jax.cpu_devices import use_cores
from looped_jax.errors import UserError
from looped_jax.interruption import Interrupted
from looped_jax.lock import is_locked
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder, State
from looped_jax.training.reporting import Diverged
from looped_jax.training.trainer import train

# Whoever held the run before may be about to save a checkpoint and end.
LOCK_SECONDS = 30.0


_at_hand: list[RunFolder] = []  # the run that trains now, or none


def execute(folder: RunFolder, config: dict[str, Any]) -> tuple[State, str | None]:
    """Trains a run, or goes on with it; what it prints goes to output.log in its folder.

    Of several processes only the first has the folder; the others print where they print.

    Returns:
      How it ended, and why if it is not finished. Of exceptions only those that end a process pass.
    """
    _at_hand.append(folder)
    try:
        if jax.distributed.is_initialized() and not processes.is_first():
            return _train(folder, config, Console(quiet=True))
        folder.path.mkdir(parents=True, exist_ok=True)
        with _output_to(folder.path / OUTPUT):
            _wait_for_lock(folder)
            return _train(folder, config, Console(file=sys.stderr, force_terminal=False))
    except Interrupted as error:
        return "interrupted", str(error)
    except OSError as error:
        return "failed", f"cannot write {folder.path}: {error.strerror}"
    finally:
        _at_hand.pop()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handles SIGTERM outside of the training loop, where there is nothing to save."""
    raise Interrupted(_step_of(_at_hand[-1]) if _at_hand else 0, number)


def _step_of(folder: RunFolder) -> int:
    status = folder.readable_status()
    return status.step or 0 if status else 0


def _train(folder: RunFolder, config: dict[str, Any], console: Console) -> tuple[State, str | None]:
    if not jax.distributed.is_initialized():
        use_cores(folder.started_on())
    try:
        with Display(console) as display:
            train(ConfigDict(config), folder.path, "may", display)
    except Interrupted as error:
        return "interrupted", str(error)
    except Diverged as error:
        return "diverged", str(error)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return "failed", str(error)
    except Exception as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "finished", None


def _wait_for_lock(folder: RunFolder) -> None:
    """Gives the process of a sweep or job that was killed the time to end; train() names others."""
    deadline = time.monotonic() + LOCK_SECONDS
    while is_locked(folder.lock_path) and time.monotonic() < deadline:
        time.sleep(0.2)


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Lets standard output and error, also those of native code, end in this file."""
    before = [os.dup(1), os.dup(2)]
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, descriptor in enumerate(before, 1):
            os.dup2(descriptor, target)
            os.close(descriptor)
