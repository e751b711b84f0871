"""How far a long analysis is: one line that renews itself on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TextIO

#: Nothing is shown before this time, and plain lines are at least this far apart.
QUIET_SECONDS = 3.0


class Progress:
    """Counts done against total units of work and estimates the time left."""

    def __init__(self, total: float, unit: str, stream: TextIO | None = None) -> None:
        self._total, self._unit = total, unit
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._done = 0.0
        self._start = self._shown = time.monotonic()
        self._line_open = False

    def start(self, label: str, work: float) -> None:
        """A part begins; what was begun before is done."""
        now = time.monotonic()
        elapsed = now - self._start
        interval = 0.2 if self._terminal else QUIET_SECONDS
        if elapsed > QUIET_SECONDS and now - self._shown > interval and self._done:
            rate = self._done / elapsed
            left = (self._total - self._done) / rate
            if self._terminal or left > 1:
                self._write(
                    f"{self._done:,.0f} of {self._total:,.0f} {self._unit}, {rate:,.0f}/s, "
                    f"about {left:.0f} s left: {label}"
                )
                self._shown = now
        self._done += work

    def finish(self) -> None:
        """End the line on a terminal."""
        if self._line_open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._line_open = False

    def _write(self, text: str) -> None:
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._line_open = True
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()
