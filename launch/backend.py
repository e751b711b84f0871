"""Where the runs of a study are executed: the seam between a sweep and a machine or scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from launch.study import PlannedRun
from looped_jax.run_folder import State


@dataclass(frozen=True)
class Ended:
    """A run that a backend is through with.

    Attributes:
      state: "finished", or how it stopped.
      reason: why it did not finish, in one line.
      seconds: it took in this sweep, starting and compiling included.
    """

    run: PlannedRun
    state: State
    reason: str | None
    seconds: float


class Backend(Protocol):
    """Executes runs. How far each is stands in its run folder and is read there.

    Attributes:
      stopping: what happens to the runs when a sweep is asked to stop, in words.
    """

    stopping: str

    def submit(self, groups: Sequence[Sequence[PlannedRun]]) -> None:
        """Takes over runs; those of one group share compiled programs. First groups first."""

    def poll(self, seconds: float) -> list[Ended]:
        """Waits at most so long for runs to end; returns those that have since the last call."""

    def active(self) -> list[PlannedRun | None]:
        """The run that each worker or job is at, None for an idle one."""

    def is_busy(self) -> bool:
        """Whether a run that was submitted has not ended yet."""

    def stop(self) -> list[Ended]:
        """Ends what cannot go on without the sweep: active runs save a checkpoint first."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None:
        """Ends at once what cannot go on without the sweep."""
