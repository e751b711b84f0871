"""How much of an input is read, how fast, and the time left, as lines."""

import time
from collections.abc import Callable

PROGRESS_SECONDS = 5.0


class Progress:
    """Says every few seconds how far the reading of so much input is."""

    def __init__(self, name: str, size: int, say: Callable[[str], None]):
        self._name, self._size, self._say = name, size, say
        self._start = self._spoke = time.monotonic()
        self._consumed = self._characters = 0

    def add(self, consumed: int, characters: int) -> None:
        """Takes note of input that was read, in the unit of its size, and of its text."""
        self._consumed += consumed
        self._characters += characters
        if time.monotonic() - self._spoke >= PROGRESS_SECONDS:
            self._speak()

    def finish(self) -> None:
        """Says what the whole took."""
        seconds = time.monotonic() - self._start
        self._say(f"{self._name}: {self._characters / 1e6:.1f}M characters in {seconds:.1f} s")

    def _speak(self) -> None:
        self._spoke = time.monotonic()
        seconds = self._spoke - self._start
        part = self._consumed / self._size
        left = f"{seconds * (1 - part) / part:.0f} s left" if part > 0 else "time left unknown"
        self._say(
            f"{self._name}: {part:.0%} of the input, {self._characters / 1e6:.1f}M characters, "
            f"{self._characters / 1e6 / seconds:.1f}M a second, {left}"
        )
