"""Which run a worker takes next."""

from collections.abc import Hashable, Sequence

from launch.study import PlannedRun


class Schedule:
    """Waiting runs, in groups that share compiled programs.

    A worker stays with its group, since it has compiled for it. Then it takes the group with the
    most FLOPs that nobody is at; and when there is none, it helps with the one that has the most
    waiting, as long as that is worth compiling once more.

    Attributes:
      least_help: FLOPs that have to wait in a group for another worker to help.
    """

    def __init__(self, groups: Sequence[Sequence[PlannedRun]]):
        self.least_help = 0.0
        self._waiting: list[list[PlannedRun]] = [list(group) for group in groups if group]
        self._group_of: dict[Hashable, list[PlannedRun]] = {}

    def take(self, worker: Hashable) -> PlannedRun | None:
        """The next run for a worker, largest first within a group; None if there is none for it."""
        group = self._group_of.get(worker)
        if not group:
            group = self._choose()
            if group is None:
                return None
            self._group_of[worker] = group
        run = group.pop(0)
        self._waiting = [group for group in self._waiting if group]
        return run

    def forget(self, worker: Hashable) -> None:
        """The worker is gone, and with it what it has compiled."""
        self._group_of.pop(worker, None)

    def clear(self) -> None:
        """Drops what is waiting."""
        for group in self._waiting:
            group.clear()
        self._waiting = []

    def __len__(self) -> int:
        """How many runs are waiting."""
        return sum(len(group) for group in self._waiting)

    def _choose(self) -> list[PlannedRun] | None:
        taken = [id(group) for group in self._group_of.values()]
        free = [group for group in self._waiting if id(group) not in taken]
        waiting = lambda group: sum(run.flops for run in group)
        group = max(free or self._waiting, key=waiting, default=None)
        if group is None or (not free and waiting(group) < self.least_help):
            return None
        return group
