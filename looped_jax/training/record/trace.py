"""A profiler trace of chosen steps, for TensorBoard's profile page or Perfetto."""

from pathlib import Path
from typing import Any

import jax

FOLDER = "profile"


class Trace:
    """Records the steps from the first to the last of `steps`; none if it is empty."""

    def __init__(self, folder: Path, steps: tuple[int, ...]):
        """
        Args:
          folder: the run folder; every process adds its part to the folder `profile` in it.
          steps: (first, last), counted from 1, or ().
        """
        self._folder = Path(folder) / FOLDER
        self._steps = range(steps[0], steps[1] + 1) if steps else range(0)
        self._running = False

    def before(self, step: int) -> None:
        """To be called before a step is started."""
        if step in self._steps and not self._running:
            jax.profiler.start_trace(str(self._folder))
            self._running = True

    def after(self, step: int, results: Any) -> None:
        """To be called with what the step returns; waits for it if it is the last of the trace."""
        if self._running and step >= self._steps[-1]:
            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """Ends the trace if it is running, so that what there is of it can be read."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
