"""What a Slurm job runs: a group of runs, one after another, each on all processes of the job.

Slurm speaks by signals. SIGUSR2 comes to every process some time before the time limit: the run
saves a checkpoint and the job is requeued, to go on where it was. SIGTERM (a cancelled or preempted
job) also saves a checkpoint, and ends the job.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn, TypedDict

from launch.execute import execute, interrupt
from looped_jax import peers, processes
from looped_jax.config import resolve_json
from looped_jax.errors import UserError
from looped_jax.interruption import Interrupted
from looped_jax.run_folder import RunFolder

TIME_SIGNAL = signal.SIGUSR2
FAILED_STATUS = 1

_time_is_up: list[int] = []


class Order(TypedDict):
    """A run: its folder and its whole config as JSON values."""

    folder: str
    config: dict


def run_group(orders: Sequence[Order]) -> NoReturn:
    """Runs a group and exits: 0, or 1 if a run failed."""
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(TIME_SIGNAL, _note_time)
    folders = [RunFolder(order["folder"]) for order in orders]
    done_before = _steps_done(folders)
    status = 0
    try:
        status = _run(orders)
    except Interrupted as error:
        print(f"interrupted: {error}", flush=True)
    except UserError as error:
        sys.exit(f"error: {error}")
    for number in (signal.SIGTERM, TIME_SIGNAL):  # there is nothing left to save
        signal.signal(number, signal.SIG_IGN)
    if _time_is_up and _is_first() and not all(folder.is_finished() for folder in folders):
        if _steps_done(folders) == done_before:
            _fail_without_progress(folders)
            status = FAILED_STATUS
        else:
            _requeue()
    sys.exit(status)


def _run(orders: Sequence[Order]) -> int:
    of_group = resolve_json(orders[0]["config"]).processes
    processes.connect(of_group.count, of_group.connect_seconds)
    with peers.watch():
        return _run_all(orders, several=of_group.count > 1)


def _run_all(orders: Sequence[Order], several: bool) -> int:
    status = 0
    for order in orders:
        folder = RunFolder(order["folder"])
        if len(orders) > 1 and not several and _was_given_up(folder):
            continue
        print(f"run {folder.path}", flush=True)
        state, reason = execute(folder, order["config"])
        print(f"{state}{f': {reason}' if reason else ''}", flush=True)
        if state == "interrupted":
            break
        if state == "failed":
            status = FAILED_STATUS
            if several:  # what the others are at cannot be known
                break
    return status


def _note_time(number: int, frame: FrameType | None) -> None:
    print("Slurm says that time is up", flush=True)
    _time_is_up.append(number)
    signal.raise_signal(signal.SIGTERM)  # to whoever handles it now


def _is_first() -> bool:
    return os.environ["SLURM_PROCID"] == "0"


def _steps_done(folders: Sequence[RunFolder]) -> int:
    """Saved optimiser steps of all runs."""
    return sum(status.step or 0 for folder in folders if (status := folder.readable_status()))


def _was_given_up(folder: RunFolder) -> bool:
    """Whether this job failed at a run before it was requeued, and went on with the next."""
    status = folder.readable_status()
    requeued = int(os.environ.get("SLURM_RESTART_COUNT", 0)) > 0
    return requeued and status is not None and status.state in ("failed", "diverged")


def _fail_without_progress(folders: Sequence[RunFolder]) -> None:
    """A job that is requeued without having saved a step would be for ever."""
    at_hand = next(folder for folder in folders if not folder.is_finished())
    at_hand.set_status(
        "failed", reason="no step was saved within the time of a job: give it more (--slurm_time)"
    )


def _requeue() -> None:
    """Puts this job back into the queue; Slurm ends what is left of it."""
    job = os.environ["SLURM_JOB_ID"]
    asked = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
    said = "requeued" if asked.returncode == 0 else f"cannot requeue: {asked.stderr.strip()}"
    print(f"time is up; job {job} {said}", flush=True)
