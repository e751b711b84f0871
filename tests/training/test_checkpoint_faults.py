"""Saves that fail and saves that are killed: what was complete before stays, and is found."""

import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from looped_jax.training import checkpoint_files
from looped_jax.training.checkpoints import Checkpoints, SaveFailed

ROOT = Path(__file__).parents[2]


def make_state(step):
    return {"params": {"w": jax.random.normal(jax.random.key(step), (512, 512))}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


# In a process of its own, since threads of orbax outlive a save that failed, and complain.
FULL_DISK = """
import sys, time
from pathlib import Path
import jax, jax.numpy as jnp
from looped_jax.training.checkpoints import Checkpoints, SaveFailed
from tests.training import faults
folder = Path(sys.argv[1])
state = lambda step: {"params": {"w": jax.random.normal(jax.random.key(step), (512, 512))}}

def failure(call):
    try:
        call()
    except SaveFailed as error:
        assert "File too large" in str(error), error
        return str(error).partition(":")[0]

with Checkpoints(folder, keep=1) as checkpoints:
    def save(step):
        checkpoints.save(step, state(step), {})
        checkpoints.wait()
    with faults.no_space():
        print(failure(lambda: save(1)))
    save(10)
    with faults.no_space():
        print(failure(lambda: save(20)))
        print(checkpoints.latest_step())
        checkpoints.save(20, state(20), {})
        checkpoints._finisher.submit(lambda: None).result()  # the background is through
        print(failure(lambda: checkpoints.save(21, state(21), {})))
    restored = checkpoints.restore(state(0), "must").state
    print((restored["params"]["w"] == state(10)["params"]["w"]).all())
    save(20)
    print(checkpoints.restore(state(0), "must").step)
"""


def test_failed_save_surfaces_on_the_next_call_and_harms_nothing(folder):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [
        "cannot save the checkpoint of step 1 (there is none before it)",
        "cannot save the checkpoint of step 20 (step 10 is untouched)",
        "10",
        "cannot save the checkpoint of step 20 (step 10 is untouched)",
        "True",
        "20",
    ], done.stderr
    assert [name for name in names(folder) if "unfinished" not in name] == ["20"]


def test_no_space_for_the_digests(folder, monkeypatch):
    def full(path, value):
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    monkeypatch.setattr(checkpoint_files, "write_json", full)
    checkpoints.save(2, make_state(2), {})
    with pytest.raises(SaveFailed, match="No space left on device"):
        checkpoints.close()
    assert names(folder) == ["1"]


SAVER = """
import os, shutil, signal, sys, time
from pathlib import Path
import jax
from looped_jax.training import checkpoint_files
from looped_jax.training.checkpoints import Checkpoints
die = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
folder, moment, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Checkpoints(folder, keep=1) as checkpoints:
    for step in range(1, at + 1):
        params = {"w": jax.random.normal(jax.random.key(step), (512, 512))}
        if step == at:
            checkpoints.wait()
            if moment == "before the rename":
                Path.rename = die
            if moment == "before the old one goes":
                checkpoint_files.remove_old = die
            if moment == "while the old one goes":
                shutil.rmtree = die
        checkpoints.save(step, {"params": params}, {})
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("moment", "at", "expected"),
    [
        ("before the rename", 1, {None}),
        ("before the rename", 2, {1}),
        ("before the old one goes", 2, {2}),
        ("while the old one goes", 2, {2}),
        ("in orbax", 3, {2, 3}),  # 3 if the kill came late
    ],
)
def test_kill_during_a_save(folder, moment, at, expected):
    command = [sys.executable, "-c", SAVER, str(folder), moment, str(at)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        while moment == "in orbax" and not list(folder.glob(f"{at}.unfinished*/params*/*/d/*")):
            assert process.poll() is None
        if moment == "in orbax":
            process.kill()
    assert process.returncode == -signal.SIGKILL
    with Checkpoints(folder, keep=1) as checkpoints:
        restored = checkpoints.restore(make_state(0), "may")
    assert (restored and restored.step) in expected
    if restored:
        expected_state = make_state(restored.step)
        np.testing.assert_array_equal(restored.state["params"]["w"], expected_state["params"]["w"])
    left = [] if expected == {None} else [str(restored.step)]
    if moment == "before the old one goes":
        left = ["1", "2"]
    assert names(folder) == left or (moment == "in orbax" and names(folder) == ["2", "3"])
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(4, make_state(4), {})
    assert names(folder) == ["4"]
