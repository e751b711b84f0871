"""Stopping in good order: the first Ctrl-C or SIGTERM asks, a second Ctrl-C stops at once."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint is saved and the same command goes on.

    Attributes:
      step: optimiser steps done.
      signal_number: SIGINT or SIGTERM.
    """

    def __init__(self, step: int, signal_number: int):
        name = signal.Signals(signal_number).name
        super().__init__(f"{name} after step {step}")
        self.step = step
        self.signal_number = signal_number


class StopRequest:
    """Inside the block, SIGINT and SIGTERM set `signal_number` instead of ending the process.

    Works in the main thread only (Python delivers signals there); elsewhere ValueError.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number
