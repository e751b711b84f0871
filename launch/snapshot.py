"""How far a run is, as its folder tells. The same for every backend."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.study import PlannedRun
from looped_jax.errors import UserError
from looped_jax.run_folder import State

_TAIL_BYTES = 1 << 14


@dataclass(frozen=True)
class Snapshot:
    """What a run folder says at one moment.

    Attributes:
      state: None if the run never started. "running" is also what a killed run left behind.
      step: last optimiser step logged or saved.
      loss: validation loss of a finished run, training loss of an unfinished one (nats), or None.
      tokens_per_second: of the last logged steps, or None.
      seconds: spent training, or None.
      reason: why it stopped, or what it does before its first step, or None.
    """

    state: State | None
    step: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    reason: str | None = None


def snapshot(run: PlannedRun) -> Snapshot:
    """Reads a run's folder, which may not exist; a run with a broken file counts as failed."""
    try:
        return _snapshot(run)
    except UserError as error:
        return Snapshot("failed", reason=str(error))


def _snapshot(run: PlannedRun) -> Snapshot:
    if run.folder.is_finished():
        summary = run.folder.read_summary()
        return Snapshot("finished", run.resolved.steps, summary["loss"], None, summary["seconds"])
    status = run.folder.status()
    if status is None:
        return Snapshot(None)
    logged = last_metrics(run.folder.metrics_path)
    stepping = status.state == "running" and logged.get("step", 0) > (status.step or 0)
    return Snapshot(
        status.state,
        max(status.step or 0, logged.get("step", 0)),
        logged.get("loss"),
        logged.get("tokens_per_second"),
        logged.get("seconds"),
        None if stepping else status.reason,
    )


def last_metrics(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl that has a training loss; empty if there is none."""
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    for line in reversed(lines[:-1]):  # the last is empty, or being written
        try:
            metrics = json.loads(line)
        except (ValueError, RecursionError):  # the first one read may lack its beginning
            continue
        if "loss" in metrics:
            return metrics
    return {}
