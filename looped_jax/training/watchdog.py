"""Ends a run that hangs: a collective that waits for ever holds its devices, and says nothing."""

import faulthandler
import threading
import time
from collections.abc import Callable
from typing import Self

MOST_SECONDS_BETWEEN_LOOKS = 10.0
STANDARD_ERROR = 2  # its descriptor


class Watchdog:
    """Inside the block calls `end` once, from a thread of its own, when nothing advances.

    Time in which the whole process stood still (a suspended machine, a stopped job) does not count.
    """

    def __init__(self, minutes: float, end: Callable[[str], None]):
        """
        Args:
          minutes: without a step that ends, after which the run is given up; 0 for never.
          end: gets the reason.
        """
        self._minutes, self._end = minutes, end
        self.interval = min(6.0 * minutes, MOST_SECONDS_BETWEEN_LOOKS)
        self._step: int | None = None
        self._advanced = True
        self._waited = 0.0
        self._looked = time.monotonic()
        self._over = threading.Event()

    def advance(self, step: int) -> None:
        """Called after every step, and after every batch of a validation."""
        self._step, self._advanced = step, True

    def look(self, now: float) -> str | None:
        """Why the run is to be given up, if it is; `now` in seconds."""
        gap, self._looked = min(now - self._looked, 2 * self.interval), now
        self._waited = 0.0 if self._advanced else self._waited + gap
        self._advanced = False
        if self._waited < 60 * self._minutes:
            return None
        after = "" if self._step is None else f" after step {self._step:,}"
        return (
            f"nothing has advanced for {self._minutes:g} minutes{after} (processes.stall_minutes)"
        )

    def __enter__(self) -> Self:
        self._looked = time.monotonic()
        if self._minutes:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self.interval):
            reason = self.look(time.monotonic())
            if reason is not None:
                # Where every thread stands, for whoever looks for the cause.
                faulthandler.dump_traceback(STANDARD_ERROR)
                self._end(reason)
                return
