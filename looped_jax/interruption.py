"""Stopping in good order: the first signal asks, a second Ctrl-C stops at once."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from looped_jax import processes

# Ctrl-C and Ctrl-\\, a scheduler's end or warning, a terminal that is closed.
STOPPING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Interrupted(Exception):
    """A run was asked to stop; what it had is saved and the same command goes on.

    Attributes:
      step: optimiser steps done; None where that was not yet known.
      signal_number: one of STOPPING.
    """

    def __init__(self, step: int | None, signal_number: int):
        name = signal.Signals(signal_number).name
        super().__init__(f"{name} " + (f"after step {step}" if step else "before training began"))
        self.step = step
        self.signal_number = signal_number


class StopRequest:
    """Inside the block a signal of STOPPING sets `signal_number` instead of ending the process.

    A SIGHUP that was ignored before still is.

    In a run of several processes a signal to one of them stops all at the same place: they find
    out together, in `check` and `poll`, which all have to call equally often.

    Works in the main thread only (Python delivers signals there); elsewhere ValueError.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._delayed = processes.DelayedMaximum()
        self._before: dict[int, Any] = {}

    def check(self, step: int | None) -> None:
        """Raises Interrupted if any process was asked to stop; `step` is what it tells."""
        if number := int(processes.largest(self.signal_number or 0)):
            raise Interrupted(step, number)

    def poll(self) -> int | None:
        """The signal that any process got, without holding up the devices.

        With several processes a signal shows up one call late, when the devices have passed it
        round beside the step before.
        """
        return self._delayed(self.signal_number or 0) or None

    def __enter__(self) -> Self:
        for number in STOPPING:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # under nohup
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
