"""How far a study is: a live display on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launch.backend import Ended
from launch.local import OUTPUT, last_lines
from launch.snapshot import Snapshot, snapshot
from launch.study import PlannedRun, Study
from looped_jax.progress import format_count, format_seconds

PLAIN_SECONDS = 15.0
LIVE_SECONDS = 0.5


class SweepDisplay:
    """Counts runs and FLOPs done, and shows them beside what each worker is at."""

    def __init__(
        self,
        study: Study,
        states: Mapping[str, Snapshot],
        workers: int,
        console: Console,
        now: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          states: of all runs at the start, by name.
          workers: how many runs can go on at once.
          now: tells the time; for tests.
        """
        self._study, self._console, self._now = study, console, now
        self._workers = workers
        self._states = dict(states)
        self._over = {name for name, state in states.items() if is_over(state)}
        self._began = self._shown = now()
        self._done_before = self.flops_done
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def ended(self, ended: Ended) -> None:
        """Prints how a run ended; for one that failed also what it printed last."""
        run = ended.run
        self._states[run.name] = snapshot(run)
        if ended.state != "interrupted":
            self._over.add(run.name)
        done = f"({format_seconds(ended.seconds)}, {len(self._over)}/{len(self._study.runs)})"
        if ended.state == "finished":
            loss = self._states[run.name].loss
            self._say(f"finished {run.name}: loss {loss:.4f} nats {done}")
            return
        self._say(f"{ended.state} {run.name}: {ended.reason} {done}")
        if ended.state == "failed":
            self._say(failure_lines(run))

    def refresh(self, active: Sequence[PlannedRun | None]) -> None:
        """Reads the runs that the workers are at and shows them, if it is time to."""
        interval = PLAIN_SECONDS if self._live is None else LIVE_SECONDS
        if self._now() - self._shown < interval:
            return
        self._shown = self._now()
        for run in active:
            if run is not None:
                self._states[run.name] = snapshot(run)
        if self._live is not None:
            self._live.update(self._render(active), refresh=True)
        else:
            self._say("; ".join([self.line(), *filter(None, map(self._worker_line, active))]))

    @property
    def flops_done(self) -> float:
        """FLOPs of all steps done, in whatever sweep."""
        return sum(run.flops * self._fraction(run) for run in self._study.runs)

    @property
    def seconds_left(self) -> float | None:
        """Until the last run ends at the rate since the start; None before anything was done."""
        elapsed, done = self._now() - self._began, self.flops_done - self._done_before
        if done <= 0 or elapsed <= 0:
            return None
        left = [
            run.flops * (1 - self._fraction(run))
            for run in self._study.runs
            if run.name not in self._over
        ]
        # The end is near when one worker is at the longest run and the others have none.
        return max(sum(left), max(left, default=0) * self._workers) * elapsed / done

    def line(self) -> str:
        """Runs and FLOPs done and in all, rate, time left."""
        done, total = self.flops_done, self._study.flops
        parts = [
            f"{len(self._over)}/{len(self._study.runs)} runs",
            f"{done:.2e}/{total:.2e} FLOPs ({100 * done / total:.0f} %)",
        ]
        elapsed = self._now() - self._began
        if done > self._done_before and elapsed > 0:
            parts.append(f"{format_count((done - self._done_before) / elapsed)}FLOP/s")
        left = self.seconds_left
        parts.append("time left unknown" if left is None else f"{format_seconds(left)} left")
        return f"{self._study.name}: {', '.join(parts)}"

    def _fraction(self, run: PlannedRun) -> float:
        return min(1.0, self._states[run.name].step / run.resolved.steps)

    def _worker_line(self, run: PlannedRun | None) -> str:
        return "" if run is None else f"{run.name} {', '.join(self._worker_cells(run))}"

    def _worker_cells(self, run: PlannedRun) -> list[str]:
        state = self._states[run.name]
        if state.state != "running":
            return ["starting"]
        if state.reason is not None or state.loss is None:
            return [state.reason or "compiling"]
        cells = [f"step {state.step:,}/{run.resolved.steps:,}", f"loss {state.loss:.3f}"]
        if state.tokens_per_second is not None:
            cells.append(f"{format_count(state.tokens_per_second)} tokens/s")
        return cells

    def _render(self, active: Sequence[PlannedRun | None]) -> RenderableType:
        bar = Table.grid()  # which ends its line, unlike a bare bar
        bar.add_row(ProgressBar(total=self._study.flops, completed=self.flops_done, width=40))
        table = Table.grid(padding=(0, 2))
        for number, run in enumerate(active, 1):
            cells = ["idle"] if run is None else [run.name, *self._worker_cells(run)]
            table.add_row(f"worker {number}", *cells)
        return Group(Text(self.line()), bar, table)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def is_over(state: Snapshot) -> bool:
    """Whether a run will not be run again: its numbers are there, or would be the same again."""
    return state.state in ("finished", "diverged")


def failure_lines(run: PlannedRun) -> str:
    """The last lines that a run printed, indented, below the name of their file."""
    path: Path = run.folder.path / OUTPUT
    lines = last_lines(path)
    return f"  {path} ends:\n" + "\n".join(f"    {line}" for line in lines.splitlines())
