"""How far a long piece of work is: live on a terminal, a plain line now and then elsewhere."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self, cast

import rich.progress
from rich.console import Console

# The rate is that of the last seconds, since evaluations and other work come in between.
_RATE_WINDOW_S = 30.0
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


class Display:
    """Where progress is shown; holds the lines of all work that goes on at once.

    A study has a line, and below it the run that trains now. On a terminal both are live and their
    last state stays; elsewhere each prints a line every `interval_s` seconds and one at its end.
    """

    def __init__(
        self,
        console: Console | None = None,
        interval_s: float = 30.0,
        now: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          console: where to; None for standard error. `Console(quiet=True)` shows nothing, for all
            processes but the first.
          interval_s: seconds between plain lines.
          now: tells the time; for tests.
        """
        self._console = console or Console(stderr=True)
        self._console.file = cast(IO[str], _Lasting(self._console.file))
        self._interval_s = interval_s
        self._now = now
        self._live: rich.progress.Progress | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = rich.progress.Progress(
                rich.progress.BarColumn(bar_width=20),
                rich.progress.TextColumn("{task.description}", markup=False),
                console=self._console,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A line of its own, above what is live."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def track(
        self,
        name: str,
        total: float,
        *,
        unit: str,
        start: float = 0,
        rate_unit: str | None = None,
        rate_scale: float = 1.0,
    ) -> "Progress":
        """Starts the line of a piece of work.

        Args:
          name: what is done.
          total: how many units there are to do.
          unit: of what, "steps".
          start: how many were done before; they do not count for the rate.
          rate_unit: what the rate counts, if not units: "tokens".
          rate_scale: how many of these are in one unit: tokens per step.
        """
        return Progress(self, name, total, unit, start, rate_unit or unit, rate_scale)


class _Lasting:
    """A text stream that takes what it is given also when its pipe or terminal is gone.

    Nobody has to look for work to go on; rich, for one, ends the process when a pipe is closed.
    """

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """One piece of work. Made by `Display.track`; a context manager that ends its line."""

    def __init__(
        self,
        display: Display,
        name: str,
        total: float,
        unit: str,
        start: float,
        rate_unit: str,
        rate_scale: float,
    ):
        self._display = display
        self._now = display._now
        self.name, self.total, self.unit = name, total, unit
        self.rate_unit, self.rate_scale = rate_unit, rate_scale
        self.done = start
        self.loss: float | None = None
        self._doing = ""
        self._began = self._printed = self._now()
        # Filled from the first update on, so that compilation does not count.
        self._recent: deque[tuple[float, float]] = deque()
        self._task: rich.progress.TaskID | None = None
        if display._live:
            self._task = display._live.add_task(self.line(), total=total)
            display._live.update(self._task, completed=start)

    def update(self, done: float, loss: float | None = None) -> None:
        """Shows that `done` units are through, and the latest loss if there is one (nats)."""
        now = self._now()
        self.done = done
        self.loss = self.loss if loss is None else loss
        self._recent.append((now, done))
        while len(self._recent) > 2 and self._recent[1][0] <= now - _RATE_WINDOW_S:
            self._recent.popleft()
        live = self._display._live
        if live and self._task is not None:
            live.update(self._task, completed=done, description=self.line())
        elif done < self.total and now - self._printed >= self._display._interval_s:
            self._print()

    def say(self, doing: str) -> None:
        """Shows what is done while nothing is counted, such as "compiling"; "" when it is over."""
        if doing == self._doing:
            return
        self._doing = doing
        live = self._display._live
        if live and self._task is not None:
            live.update(self._task, description=self.line())
        elif doing:
            self._print()

    @property
    def rate(self) -> float | None:
        """Rate units per second over the last half minute, or None before the second update."""
        if len(self._recent) < 2:
            return None
        (t0, done0), (t1, done1) = self._recent[0], self._recent[-1]
        return (done1 - done0) * self.rate_scale / (t1 - t0) if t1 > t0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds to go at this rate, or None while it is unknown."""
        if not self.rate:
            return None
        return (self.total - self.done) * self.rate_scale / self.rate

    def line(self) -> str:
        """Name, done, total, rate, loss, time left (time taken once all is done)."""
        percent = f" ({100 * self.done / self.total:.0f} %)" if self.total else ""
        done, total = _full_count(self.done), _full_count(self.total)
        parts = [f"{self.name}: {done}/{total} {self.unit}{percent}"]
        if self._doing:
            parts.append(self._doing)
        if self.rate is not None:
            parts.append(f"{format_count(self.rate)} {self.rate_unit}/s")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.done >= self.total:
            parts.append(f"took {format_seconds(self._now() - self._began)}")
        elif self.seconds_left is not None:
            parts.append(f"{format_seconds(self.seconds_left)} left")
        return ", ".join(parts)

    def close(self) -> None:
        """Ends the line: what it says last stays on the screen."""
        live = self._display._live
        if live and self._task is not None:
            live.remove_task(self._task)
        self._print()

    def _print(self) -> None:
        self._printed = self._now()
        self._display.say(self.line())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def format_seconds(seconds: float) -> str:
    """42 s as 0:42, then 1:02:03 and 2 d 03:04:05."""
    whole = math.ceil(seconds)
    days, rest = divmod(whole, 86400)
    hours, minutes, seconds = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{seconds:02}"
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"


def format_count(count: float) -> str:
    """Three significant digits and a letter: 950, 34.5k, 1.2M."""
    power = 0
    while count >= 999.5 and power < len(_THOUSANDS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g}{_THOUSANDS[power]}"


def _full_count(count: float) -> str:
    return f"{count:,.0f}" if count < 1e6 else format_count(count)
