from looped_jax.config import CheckpointConfig
from looped_jax.training.save_times import SaveTimes


def due(steps, seconds_per_step, **config):
    """Steps at which a checkpoint is due, each taking so long."""
    now = [0.0]
    times = SaveTimes(
        CheckpointConfig(**{"every_steps": 0, "every_minutes": 0.0, "milestones": (), "keep": 1}
                         | config),
        now=lambda: now[0],
    )  # fmt: skip
    found = []
    for step in range(1, steps + 1):
        now[0] += seconds_per_step
        if times.due(step):
            found.append(step)
            times.saved()
    return found


def test_by_steps_by_time_and_at_milestones():
    assert due(10, 1.0) == []
    assert due(10, 1.0, every_steps=4) == [4, 8]
    assert due(10, 25.0, every_minutes=1.0) == [3, 6, 9]
    assert due(10, 25.0, every_minutes=1.0, every_steps=4) == [3, 4, 7, 8]
    assert due(10, 1.0, milestones=(7, 2)) == [2, 7]
