"""What a run tells while it trains: metrics.jsonl (the truth), TensorBoard, the clock.

The only module that imports tensorboardX.
"""

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from looped_jax.errors import UserError
from looped_jax.files import write_bytes

Value = float | list[float]

_log = logging.getLogger(__name__)


class Diverged(RuntimeError):
    """A watched metric is no longer finite.

    Attributes:
      first_step, last_step: it happened in one of these steps, both included.
    """

    def __init__(self, name: str, value: Value, first_step: int, last_step: int):
        super().__init__(f"{name} is {value} in steps {first_step} to {last_step}")
        self.first_step = first_step
        self.last_step = last_step


class DeferredMetrics:
    """Hands metrics on one push late, so that no step waits for its own numbers.

    By then the device is at work on the next step, and the numbers of the last are on the host.
    """

    def __init__(
        self,
        sink: Callable[[int, dict[str, Value]], None],
        start_step: int,
        watched: Sequence[str],
    ):
        """
        Args:
          sink: gets (step, metrics as Python numbers), in order.
          start_step: the step that training starts after; metrics before it were finite.
          watched: metrics that must be finite, the loss above all.
        """
        self._sink = sink
        self._watched = tuple(watched)
        self._last_finite = start_step
        self._pending: tuple[int, dict[str, Any]] | None = None

    def push(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of `step` and hands on those pushed before.

        Args:
          step: number of steps done.
          metrics: scalars or vectors, on any device; must not be donated afterwards.

        Raises:
          Diverged: a watched metric of the push before is not finite.
        """
        for value in metrics.values():
            if isinstance(value, jax.Array):
                value.copy_to_host_async()
        self.flush()
        self._pending = step, dict(metrics)

    def check(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Hands on what is pending and looks at the metrics of `step`, which go nowhere.

        Raises:
          Diverged: as for `push`; never save what is not finite.
        """
        self.flush()
        self._check(step, {name: np.asarray(metrics[name]) for name in self._watched})

    def flush(self) -> None:
        """Hands on what is pending; waits for the device.

        Raises:
          Diverged: as for `push`. The sink got the metrics nevertheless.
        """
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        values = {name: np.asarray(x, np.float64).tolist() for name, x in metrics.items()}
        self._sink(step, values)
        self._check(step, values)

    def _check(self, step: int, values: Mapping[str, Any]) -> None:
        for name in self._watched:
            if not np.isfinite(values[name]).all():
                raise Diverged(name, values[name], self._last_finite + 1, step)
        self._last_finite = step


class MetricsWriter:
    """Appends to metrics.jsonl, and to TensorBoard events beside it.

    A resumed run's file equals a straight run's: lines past the restored step are removed at the
    start. For that to hold, `flush` before the checkpoint of a step is saved, and keep `lines` in
    it.

    Attributes:
      lines: of metrics.jsonl.
    """

    def __init__(self, folder: Path, start_step: int, lines: int = 0):
        """
        Args:
          folder: the run folder.
          start_step: the restored step, 0 for a new run.
          lines: that the file had when the checkpoint of this step was saved. A warning says if
            some of them are gone.

        Raises:
          UserError: metrics.jsonl is damaged (other than by a half-written last line), or a link,
            which in a folder from elsewhere may lead to any file of the user's.
        """
        path = Path(folder) / "metrics.jsonl"
        if path.is_symlink():
            raise UserError(f"{path} is a symbolic link; allowed: a plain file, or none")
        self.lines = lines
        kept = _cut(path, start_step, lines)
        if len(kept) < lines:
            _log.warning("%s", _describe_gap(path, kept, lines, start_step))
        self._file = open(path, "ab")  # noqa: SIM115
        # Without tensorboardX's own thread, which dies of a full disk and lets the run wait for it.
        self._events = EventsWriter(str(Path(folder) / "events"))
        if start_step:
            begin = SessionLog(status=SessionLog.START)
            self._write_event(start_step + 1, session_log=begin)

    def write(self, step: int, metrics: Mapping[str, Value]) -> None:
        """Writes one line {"step": step, **metrics}; what is not finite becomes null."""
        line = {"step": step} | {name: _finite(value) for name, value in metrics.items()}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()  # a kill loses nothing from here on
        self.lines += 1
        scalars = Summary()
        for name, value in metrics.items():
            named = {name: value}
            if isinstance(value, list):
                named = {f"{name}/{i}": x for i, x in enumerate(value)}
            scalars.value.extend(Summary.Value(tag=n, simple_value=x) for n, x in named.items())
        self._write_event(step, summary=scalars)

    def _write_event(self, step: int, **what: Any) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, **what))

    def flush(self) -> None:
        """Brings all lines to the disk: a power cut loses nothing from here on."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._events.flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        try:
            self.flush()
        finally:
            self._file.close()
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class NoMetrics:
    """Stands for the `MetricsWriter` in processes that write nothing."""

    lines = 0

    def write(self, step: int, metrics: Mapping[str, Value]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def last_line_with(path: Path, name: str) -> dict[str, Any]:
    """The last line of a metrics.jsonl that holds the metric `name`.

    Raises UserError if there is none.
    """
    for line in reversed(Path(path).read_bytes().splitlines()):
        metrics = json.loads(line)
        if name in metrics:
            return metrics
    raise UserError(f"{path} holds no {name}")


class Clock:
    """Seconds spent training, over all the times that the run was resumed.

    Counts on the monotonic clock; setting the wall clock does not touch it.
    """

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic):
        """
        Args:
          seconds: spent before.
          now: tells the time; for tests.
        """
        self._now = now
        self._before = seconds
        self._start: float | None = now()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + (0.0 if self._start is None else self._now() - self._start)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count what happens in the block, such as an evaluation."""
        self._before, self._start = self.seconds, None
        try:
            yield
        finally:
            self._start = self._now()

    def state_dict(self) -> dict[str, float]:
        """What `from_state_dict` needs, as JSON values for a checkpoint."""
        return {"seconds": self.seconds}

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, float], now: Callable[[], float] = time.monotonic
    ) -> Self:
        """A clock that goes on where the one of the checkpoint stood."""
        return cls(state["seconds"], now)


def _finite(value: Value) -> Any:
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return value if math.isfinite(value) else None


def _cut(path: Path, last_step: int, lines: int) -> list[int]:
    """Cuts the file, atomically, to the lines up to `last_step`, and to `lines` of them if it is
    not 0; a half-written last line goes as well. Returns the steps of the lines that are left."""
    if not path.exists():
        return []
    there = path.read_bytes().splitlines(keepends=True)
    kept: list[bytes] = []
    steps: list[int] = []
    for number, line in enumerate(there, 1):
        try:
            step = json.loads(line)["step"]
            whole = line.endswith(b"\n") and isinstance(step, int)
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if whole and step <= last_step and (lines == 0 or len(kept) < lines):
            kept.append(line)
            steps.append(step)
        elif not whole and number < len(there):
            raise UserError(f"{path} line {number} is damaged: {line[:60]!r}")
    if len(kept) < len(there):
        _log.info("removing %d lines past step %d of %s", len(there) - len(kept), last_step, path)
        write_bytes(path, b"".join(kept))
    return steps


def _describe_gap(path: Path, steps: list[int], lines: int, last_step: int) -> str:
    """What is missing of the lines that were written up to a step, and where most of it was."""
    ends = [0, *steps, last_step + 1]
    widest = max(range(1, len(ends)), key=lambda i: ends[i] - ends[i - 1])
    return (
        f"{path} lacks {lines - len(steps)} of the {lines} lines that were written up to step "
        f"{last_step}: most of them between steps {ends[widest - 1]} and {ends[widest]}"
    )
