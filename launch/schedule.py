"""Which run a worker takes next."""

from collections.abc import Hashable, Sequence

from launch.study import PlannedRun


class Schedule:
    """Waiting runs, in groups that share compiled programs.

    A worker stays with its group, since it has compiled for it. Then it takes the group with the
    most FLOPs that nobody is at; and when there is none, it helps with the one that has the most
    left, since compiling once more beats waiting.
    """

    def __init__(self, groups: Sequence[Sequence[PlannedRun]]):
        self._waiting: list[list[PlannedRun]] = [list(group) for group in groups if group]
        self._group_of: dict[Hashable, list[PlannedRun]] = {}

    def take(self, worker: Hashable) -> PlannedRun | None:
        """The next run for a worker, largest first within a group; None when none is waiting."""
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
        left = lambda group: sum(run.flops for run in group)
        return max(free or self._waiting, key=left, default=None)
