"""Run folders: who holds them, what they remember, and what they say when they are broken."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from looped_jax import run_folder
from looped_jax.errors import UserError
from looped_jax.run_folder import RunFolder, config_digest

CONFIG = {"seed": 0, "model": {"width": 64, "mesh": [1, 2]}, "logging": {"every": 10}}

HOLDER = """
import os, sys, time
from looped_jax.run_folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    forked = sys.argv[2] == "fork" and os.fork() == 0
    if forked or sys.argv[2] == "plain":
        print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def hold(folder, kind="plain"):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder.path), kind],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def kill(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_lock_refuses_another_process_until_it_is_killed(folder):
    process = hold(folder)
    try:
        with (
            pytest.raises(
                UserError,
                match=rf"in use by pid {process.pid} on host {socket.gethostname()} since",
            ),
            folder.lock(),
        ):
            pass
    finally:
        kill(process)
    with folder.lock():
        assert f"pid {os.getpid()} " in folder.lock_path.read_text()


def test_whoever_holds_the_folder_removes_what_killed_writers_left(folder):
    folder.path.mkdir()
    for name in ("summary.json.unfinished-12", "status.json.unfinished-0123456789abcdef"):
        (folder.path / name).write_text("{")
    with folder.lock():
        assert not list(folder.path.glob("*unfinished*"))


def test_lock_is_not_inherited_by_a_forked_child(folder):
    process = hold(folder, "fork")
    try:
        kill(process)
        with folder.lock():
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_lock_refuses_a_second_holder_in_one_process_and_is_released(folder):
    with folder.lock():
        with pytest.raises(UserError, match="in use by pid"), RunFolder(folder.path).lock():
            pass
        with pytest.raises(UserError, match="in use by pid"), RunFolder(folder.path).lock():
            pass
    with folder.lock():
        pass


def test_lock_takes_over_whatever_a_reboot_left(folder):
    folder.path.mkdir()
    folder.lock_path.write_text("pid 1 on host elsewhere since 2020-01-01, and more than that " * 9)
    with folder.lock():
        assert folder.lock_path.read_text().count("pid") == 1


def test_lock_is_released_after_an_error(folder):
    with pytest.raises(ZeroDivisionError), folder.lock():
        raise ZeroDivisionError
    with folder.lock():
        pass


def test_lock_warns_where_the_file_system_has_no_locks(folder, monkeypatch, caplog):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with folder.lock():
        pass
    assert "has no file locks (Function not implemented)" in caplog.text


def test_lock_names_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"cannot write into folder .*file/run"),
        RunFolder(tmp_path / "file" / "run").lock(),
    ):
        pass


def test_config_is_written_once_and_read_back(folder):
    folder.path.mkdir()
    digest = folder.write_config(CONFIG)
    assert folder.read_config() == CONFIG
    assert digest == config_digest(CONFIG) == json.loads(folder.config_path.read_text())["digest"]
    before = folder.config_path.stat().st_mtime_ns
    assert folder.write_config(json.loads(json.dumps(CONFIG))) == digest
    assert folder.config_path.stat().st_mtime_ns == before


def test_config_may_have_tuples_where_the_file_has_lists(folder):
    folder.path.mkdir()
    digest = folder.write_config(CONFIG)
    assert folder.write_config({**CONFIG, "model": {"width": 64, "mesh": (1, 2)}}) == digest


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed 0 → 1;"),
        ({"seed": False}, "seed 0 → False;"),
        ({"model": {"width": 128}}, r"model.width 64 → 128, model.mesh \[1, 2\] → absent;"),
        ({"new": {"key": "x"}}, "new.key absent → x;"),
        ({f"k{i}": i for i in range(10)}, "k7 absent → 7, and 2 more;"),
    ],
)
def test_config_that_differs_is_refused_with_its_keys(folder, change, named):
    folder.path.mkdir()
    folder.write_config(CONFIG)
    with pytest.raises(UserError, match=rf"config differs from .*config.json: .*{named}"):
        folder.write_config({**CONFIG, **change})
    assert folder.read_config() == CONFIG


def test_config_keys_that_may_change_are_updated(folder):
    folder.path.mkdir()
    folder.write_config(CONFIG)
    changed = {**CONFIG, "logging": {"every": 5}}
    assert folder.write_config(changed, may_change=["logging"]) == config_digest(changed)
    assert folder.read_config() == changed
    with pytest.raises(UserError, match=r"logging.every 5 → 1"):
        folder.write_config({**CONFIG, "logging": {"every": 1}}, may_change=["logging.every_n"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"run holds no config.json: not a run folder"),
        ("{", r"config.json is not a JSON file"),
        ("[]", r"config.json is broken: it holds no config"),
        ('{"digest": "0", "config": {}}', r"config.json does not match its digest"),
    ],
)
def test_config_missing_or_broken(folder, content, message):
    folder.path.mkdir()
    if content is not None:
        folder.config_path.write_text(content)
    with pytest.raises(UserError, match=message):
        folder.read_config()


def test_status_is_remembered_and_keeps_its_step(folder):
    assert folder.status() is None
    folder.path.mkdir()
    folder.set_status("running", step=7)
    folder.set_status("failed", reason="disk full")
    status = folder.status()
    assert (status.state, status.reason, status.step) == ("failed", "disk full", 7)
    assert (status.pid, status.host) == (os.getpid(), socket.gethostname())
    with pytest.raises(ValueError, match="state 'done': allowed are running, finished"):
        folder.set_status("done")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "status.json is not a JSON file"),
        ("{}", "status.json is broken: it holds no status"),
        (
            '{"state": "lost", "reason": null, "step": 1, "updated": "", "pid": 1, "host": ""}',
            "status.json is broken: unknown state 'lost'",
        ),
    ],
)
def test_status_broken(folder, content, message):
    folder.path.mkdir()
    folder.status_path.write_text(content)
    with pytest.raises(UserError, match=message):
        folder.status()


def test_summary_finishes_the_run(folder):
    folder.path.mkdir()
    folder.set_status("running", step=100)
    assert not folder.is_finished()
    folder.write_summary({"loss": 3.25})
    assert folder.is_finished()
    assert folder.read_summary() == {"loss": 3.25}
    assert (folder.status().state, folder.status().step) == ("finished", 100)


def test_summary_that_is_no_json_leaves_the_run_unfinished(folder):
    folder.path.mkdir()
    folder.set_status("running", step=100)
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_summary({"loss": float("nan")})
    assert not folder.is_finished()
    assert folder.status().state == "running"


def test_summary_missing_says_what_the_run_is_doing(folder):
    with pytest.raises(UserError, match=r"holds no summary.json: not a run folder"):
        folder.read_summary()
    folder.path.mkdir()
    folder.set_status("diverged", reason="loss is nan in steps 3 to 4")
    with pytest.raises(UserError, match=r"the run is diverged \(loss is nan in steps 3 to 4\)"):
        folder.read_summary()
    folder.summary_path.write_text('{"loss": 3.0}')
    with pytest.raises(UserError, match=r"summary.json does not match its digest"):
        folder.read_summary()
    folder.summary_path.write_text("[1]")
    with pytest.raises(UserError, match=r"summary.json is broken: it holds no table"):
        folder.read_summary()


def test_status_survives_a_wall_clock_that_goes_backwards(folder, monkeypatch):
    folder.path.mkdir()
    folder.set_status("running", step=1)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    folder.set_status("running", step=2)
    assert folder.status().step == 2


def test_a_full_disk_leaves_room_to_say_so(folder, monkeypatch):
    def full(path, value):
        if folder._reserve_path.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, value)

    write = run_folder.write_json
    with folder.lock():
        assert folder._reserve_path.stat().st_size == run_folder.RESERVED_BYTES
        folder.set_status("running", step=3)
        monkeypatch.setattr(run_folder, "write_json", full)
        folder.set_status("failed", reason="disk full")
    assert (folder.status().state, folder.status().step) == ("failed", 3)
    with folder.lock():
        pass
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "status.json"]
