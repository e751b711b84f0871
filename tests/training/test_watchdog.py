"""A run that hangs is ended, and its status says why."""

import threading

import pytest
from rich.console import Console

from looped_jax import peers
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from looped_jax.training import trainer
from looped_jax.training.watchdog import Watchdog
from tests.tiny_runs import tiny_config


def looks(watchdog, start, times):
    return [watchdog.look(start + seconds) for seconds in times]


def test_steps_keep_it_quiet():
    watchdog = Watchdog(1.0, pytest.fail)
    start = watchdog._looked
    for step in range(1, 30):
        watchdog.advance(step)
        assert looks(watchdog, start, [10 * step]) == [None]
    assert looks(watchdog, start, range(300, 350, 10)) == [None] * 5
    assert watchdog.look(start + 350) == (
        "nothing has advanced for 1 minutes after step 29 (processes.stall_minutes)"
    )


def test_time_in_which_the_process_was_stopped_does_not_count():
    watchdog = Watchdog(1.0, pytest.fail)
    start = watchdog._looked
    assert looks(watchdog, start, [10, 20, 100_000]) == [None] * 3


def test_the_status_of_a_run_that_hangs(data, tmp_path, monkeypatch):
    """The step waits until the process would have ended."""
    folder, ended, statuses = RunFolder(tmp_path / "run"), threading.Event(), []

    def end():
        statuses.append(folder.status())
        ended.set()

    monkeypatch.setattr(peers, "_end", end)

    def hang(*_):
        ended.wait(60)
        raise TimeoutError("the process has ended by now")

    monkeypatch.setattr(trainer, "train_step", lambda *_: hang)
    config = tiny_config(data.folder, steps=1)
    config.processes.stall_minutes = 1e-4
    with pytest.raises(TimeoutError):
        trainer.train(config, folder.path, "no", Display(Console(quiet=True)))
    assert [status.state for status in statuses] == ["failed"]
    assert statuses[0].reason.startswith("nothing has advanced for 0.0001 minutes")
