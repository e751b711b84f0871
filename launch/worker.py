"""A process that trains one run after another; `launch.local` starts it and tells it which.

It says READY, reads orders from standard input, one JSON line each:
{"folder": …, "config": …, "new_shape": …}, and answers each with a line: {"state": …, "reason": …}.
Compiled programs stay between runs of one shape, which therefore compile once. What a run prints
goes to output.log in its folder.

SIGTERM, and the end of standard input (the parent has died, however it did), let the run at hand
save a checkpoint and end the process.
"""

import contextlib
import fcntl
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from launch.local import OUTPUT, READY
from looped_jax.errors import UserError
from looped_jax.training.interruption import Interrupted
from looped_jax.training.progress import Display
from looped_jax.training.reporting import Diverged
from looped_jax.training.run_folder import RunFolder, State
from looped_jax.training.trainer import train

# A worker whose parent has died has so long to save a checkpoint; whoever comes next waits longer.
LAST_SECONDS = 20.0
LOCK_SECONDS = 30.0

_at_hand: list[RunFolder] = []  # the run that trains now, or none


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but answers goes through that pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to pass on
    signal.signal(signal.SIGTERM, _interrupt)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    # When the parent has died there is nobody left to be told.
    with contextlib.suppress(Interrupted, BrokenPipeError):
        os.write(answers, READY)
        state: State | None = None
        while state != "interrupted":
            order = json.loads(orders.get())
            if order["new_shape"]:
                # Each shape maps some 600 pieces of memory, of the 65,530 that Linux allows.
                jax.clear_caches()
            state, reason = _execute(RunFolder(order["folder"]), order["config"])
            os.write(answers, json.dumps({"state": state, "reason": reason}).encode() + b"\n")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Outside the training loop, which stops in its own order, there is nothing to save."""
    raise Interrupted(_step_of(_at_hand[-1]) if _at_hand else 0, number)


def _step_of(folder: RunFolder) -> int:
    status = folder.status()
    return status.step or 0 if status else 0


def _listen(orders: "queue.SimpleQueue[bytes]") -> None:
    # Unbuffered: the interpreter cannot end while a thread waits in a buffered read.
    for line in open(0, "rb", buffering=0, closefd=False):  # noqa: SIM115
        orders.put(line)
    deadline = threading.Timer(LAST_SECONDS, os._exit, [1])
    deadline.daemon = True
    deadline.start()
    os.kill(os.getpid(), signal.SIGTERM)


def _execute(folder: RunFolder, config: dict[str, Any]) -> tuple[State, str | None]:
    """Trains a run. Returns how it ended and why."""
    _at_hand.append(folder)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with _output_to(folder.path / OUTPUT):
            return _train(folder, config)
    except OSError as error:
        return "failed", f"cannot write {folder.path}: {error.strerror}"
    finally:
        _at_hand.pop()


def _train(folder: RunFolder, config: dict[str, Any]) -> tuple[State, str | None]:
    try:
        _wait_for_lock(folder)
        with Display(Console(file=sys.stderr, force_terminal=False)) as display:
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
    """Gives a worker of a parent that was killed the time to end; train() speaks of others."""
    deadline = time.monotonic() + LOCK_SECONDS
    while _is_locked(folder.lock_path) and time.monotonic() < deadline:
        time.sleep(0.2)


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with open(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
    return False


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


if __name__ == "__main__":
    main()
