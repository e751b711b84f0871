"""When a run saves: every so many steps, every so many minutes, and at milestones."""

import time
from collections.abc import Callable

from looped_jax.config import CheckpointConfig
from looped_jax.processes import DelayedMaximum


class SaveTimes:
    """Says after each step whether a checkpoint is due. Several processes agree."""

    def __init__(self, config: CheckpointConfig, now: Callable[[], float] = time.monotonic):
        """`now` tells seconds; for tests."""
        self._config, self._now = config, now
        self._last_save = now()
        self._overdue = DelayedMaximum()

    def due(self, step: int) -> bool:
        """Whether to save after `step`; to be asked after each, on every process.

        Time is up for all when it is for one; with several processes they hear of it a step later.
        """
        minutes, every = self._config.every_minutes, self._config.every_steps
        by_time = False
        if minutes:
            overdue = self._now() - self._last_save >= 60 * minutes
            by_time = bool(self._overdue(int(overdue)))
        return by_time or step in self._config.milestones or (every > 0 and step % every == 0)

    def saved(self) -> None:
        """To be told of every save."""
        self._last_save = self._now()
        self._overdue = DelayedMaximum()
