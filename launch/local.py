"""The local backend: worker processes on this machine, one run at a time each."""

import contextlib
import json
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from launch.backend import Ended
from launch.machine import child_environment
from launch.schedule import Schedule
from launch.study import PlannedRun
from looped_jax.errors import UserError
from looped_jax.run_folder import State

OUTPUT = "output.log"  # in a run folder: what the run printed
READY = b"ready\n"  # the first line of a worker
COMPILE_SECONDS = 20.0  # what it costs about to start on another shape
STOP_SECONDS = 60.0
EXIT_SECONDS = 5.0
_LINES_SHOWN = 15


class WorkersBroken(UserError):
    """A worker ended before it could take a run: the next one would, too."""


class LocalBackend:
    """Workers that take runs from a schedule until none is waiting."""

    stopping = "stopping: runs save a checkpoint (again Ctrl-C: at once)"

    def __init__(self, environments: Sequence[Mapping[str, str]], logs: Path):
        """
        Args:
          environments: one for each worker: what it gets on top of this process's environment.
          logs: folder for what workers print outside of runs.
        """
        self._environments = environments
        self._logs = logs
        self._schedule = Schedule([])
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker | None] = [None] * len(environments)
        self._stopping = False
        self._finished_flops = self._finished_seconds = 0.0

    def submit(self, groups: Sequence[Sequence[PlannedRun]]) -> None:
        self._schedule = Schedule(groups)
        self._logs.mkdir(parents=True, exist_ok=True)
        for index in range(len(self._workers)):
            self._give_work(index)

    def poll(self, seconds: float) -> list[Ended]:
        ended = []
        for key, _ in self._selector.select(seconds):
            index: int = key.data
            worker = self._workers[index]
            assert worker is not None
            answer = worker.answers.readline()
            if not answer:
                ended += self._bury(index)
            elif answer == READY:
                worker.ready = True
            else:
                ended.append(worker.end_run(**json.loads(answer)))
                self._learn_rate(ended[-1])
            self._give_work(index)
        return ended

    def active(self) -> list[PlannedRun | None]:
        return [worker.run if worker else None for worker in self._workers]

    def is_busy(self) -> bool:
        return len(self._schedule) > 0 or any(self.active())

    def stop(self) -> list[Ended]:
        self._stopping = True
        self._schedule.clear()
        self._signal(signal.SIGTERM)
        ended, deadline = [], time.monotonic() + STOP_SECONDS
        while any(self.active()) and time.monotonic() < deadline:
            ended += self.poll(0.5)
        self._signal(signal.SIGKILL)
        while any(self.active()):
            ended += self.poll(0.5)
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if any(self.active()):
            self._signal(signal.SIGKILL)
        for worker in self._workers:
            if worker is not None:
                worker.close()
        self._selector.close()

    def _give_work(self, index: int) -> None:
        worker = self._workers[index]
        if self._stopping or (worker and worker.run):
            return
        run = self._schedule.take(index)
        if run is None:
            return
        if worker is None:
            worker = self._workers[index] = _Worker(self._environments[index], self._log(index))
            self._selector.register(worker.answers, selectors.EVENT_READ, index)
        worker.begin_run(run)

    def _learn_rate(self, ended: Ended) -> None:
        if ended.state == "finished":
            self._finished_flops += ended.run.flops
            self._finished_seconds += ended.seconds
            rate = self._finished_flops / self._finished_seconds
            self._schedule.least_help = COMPILE_SECONDS * rate

    def _bury(self, index: int) -> list[Ended]:
        """After a worker's death: the run it was at has failed; a new worker takes the next."""
        worker = self._workers[index]
        assert worker is not None
        self._workers[index] = None
        self._selector.unregister(worker.answers)
        self._schedule.forget(index)
        status = worker.close()
        if not worker.ready and status > 0 and not self._stopping:
            log = self._log(index)
            raise WorkersBroken(f"cannot start worker {index + 1}: {log} ends {last_lines(log, 1)}")
        if worker.run is None:
            return []
        if worker.run.folder.is_finished():
            return [worker.end_run("finished", None)]
        if self._stopping:
            return [worker.end_run("interrupted", "stopped without a checkpoint of its last steps")]
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited {status}"
        reason = f"its process {how}"
        told = worker.run.folder.readable_status()
        if told is not None and told.state == "failed":
            return [worker.end_run("failed", told.reason)]
        # Somebody else who holds the folder by now writes the status there.
        with contextlib.suppress(UserError), worker.run.folder.lock():
            worker.run.folder.set_status("failed", reason=reason)
        return [worker.end_run("failed", reason)]

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.process.send_signal(number)

    def _log(self, index: int) -> Path:
        return self._logs / f"worker-{index + 1}.log"


class _Worker:
    """A process that runs launch.worker."""

    def __init__(self, environment: Mapping[str, str], log: Path):
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launch.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**child_environment(), **environment},
                start_new_session=True,  # Ctrl-C reaches the parent alone
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._orders: IO[bytes] = self.process.stdin
        self.answers: IO[bytes] = self.process.stdout
        self.run: PlannedRun | None = None
        self._shape: Hashable = None
        self.ready = False
        self._began = 0.0

    def begin_run(self, run: PlannedRun) -> None:
        new_shape = self._shape is not None and run.shape != self._shape
        self.run, self._shape, self._began = run, run.shape, time.monotonic()
        order = {"folder": str(run.folder.path), "config": run.config, "new_shape": new_shape}
        with contextlib.suppress(BrokenPipeError):  # it has died: poll() will find out
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()

    def end_run(self, state: State, reason: str | None) -> Ended:
        assert self.run is not None
        ended = Ended(self.run, state, reason, time.monotonic() - self._began)
        self.run = None
        return ended

    def close(self) -> int:
        """Waits for its end, which the end of its input brings about. Returns its exit status."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        try:
            status = self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.answers.close()
        return status


def last_lines(path: Path, count: int = _LINES_SHOWN) -> str:
    """The end of a text file, or nothing if there is none."""
    if not path.exists():
        return ""
    with open(path, errors="replace") as file:
        return "".join(deque(file, count)).rstrip()
