from dataclasses import dataclass

import pytest

from launch.schedule import Schedule


@dataclass(frozen=True)
class Run:
    name: str
    flops: float


def groups(*sizes):
    """Groups of runs named a1, a2, …, b1, …, with these FLOPs."""
    return [
        [Run(f"{letter}{i}", flops) for i, flops in enumerate(group, 1)]
        for letter, group in zip("abc", sizes, strict=False)
    ]


def names(schedule, *workers):
    return [run.name if (run := schedule.take(worker)) else None for worker in workers]


def test_a_worker_stays_with_its_shape():
    schedule = Schedule(groups([5, 4, 3], [5, 4]))
    assert names(schedule, 0, 1, 1, 0) == ["a1", "b1", "b2", "a2"]
    assert len(schedule) == 1


def test_the_largest_free_group_comes_next():
    schedule = Schedule(groups([9], [3, 2], [4]))
    assert names(schedule, 0, 0, 0, 0) == ["a1", "b1", "b2", "c1"]


def test_an_idle_worker_helps_where_the_most_is_left():
    schedule = Schedule(groups([5, 4, 4], [6, 1]))
    assert names(schedule, 0, 1, 2, 1, 1, 0) == ["a1", "b1", "a2", "b2", "a3", None]
    assert len(schedule) == 0


def test_a_worker_does_not_help_where_little_is_left():
    schedule = Schedule(groups([5, 4, 3, 2]))
    assert names(schedule, 0, 1) == ["a1", "a2"]
    schedule.least_help = 6
    assert names(schedule, 2, 1, 0) == [None, "a3", "a4"]


def test_a_group_that_nobody_is_at_is_taken_however_small():
    schedule = Schedule(groups([5], [1]))
    schedule.least_help = 100
    assert names(schedule, 0, 0) == ["a1", "b1"]


def test_a_new_worker_does_not_inherit_a_group():
    schedule = Schedule(groups([5, 1], [9]))
    assert names(schedule, 0, 1) == ["b1", "a1"]
    schedule.forget(1)
    assert names(schedule, 0) == ["a2"]


def test_cleared_it_gives_nothing():
    schedule = Schedule(groups([5, 4], [3]))
    schedule.take(0)
    schedule.clear()
    assert names(schedule, 0, 1) == [None, None]
    assert len(schedule) == 0


@pytest.mark.parametrize("workers", [1, 2, 5, 20])
def test_every_run_is_given_once(workers):
    planned = groups(range(1, 8), range(3, 5), [40])
    schedule = Schedule(planned)
    taken = []
    while len(schedule):
        taken += [run for worker in range(workers) if (run := schedule.take(worker))]
    assert sorted(run.name for run in taken) == sorted(r.name for g in planned for r in g)
