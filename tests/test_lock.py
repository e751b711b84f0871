import os
import subprocess
import sys

import pytest

from looped_jax.errors import UserError
from looped_jax.lock import Held, is_locked, locked


def test_a_lock_is_held_once_and_says_by_whom(tmp_path):
    path = tmp_path / ".lock"
    assert not is_locked(path)
    with locked(path, "the first"):
        assert is_locked(path)
        with pytest.raises(Held, match=r"^the first$"), locked(path, "the second"):
            pass
        assert path.read_text() == "the first"
    assert not is_locked(path)
    with locked(path, "2nd"):
        assert path.read_text() == "2nd"


def test_a_kill_leaves_no_lock(tmp_path):
    path = tmp_path / ".lock"
    held = (
        "import sys, time\nfrom pathlib import Path\nfrom looped_jax.lock import locked\n"
        "with locked(Path(sys.argv[1]), 'it'):\n    print('held', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", held, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert is_locked(path)
        process.kill()
        process.wait()
    assert not is_locked(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with (
        pytest.raises(UserError, match=r"cannot write .*none/\.lock: No such file"),
        locked(tmp_path / "none" / ".lock", "me"),
    ):
        pass


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard", "pipe", "folder"])
def test_a_lock_is_a_plain_file_and_no_way_to_another(tmp_path, kind):
    """A downloaded folder may hold a link in the lock's place; nothing it leads to is written."""
    victim, path = tmp_path / "victim", tmp_path / ".lock"
    victim.write_text("mine")
    if kind == "hard":
        path.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim if kind == "symbolic" else tmp_path / "none")
    message = r"\.lock is a link or no plain file|cannot write .*\.lock: Is a directory"
    with pytest.raises(UserError, match=message), locked(path, "me"):
        pass
    assert victim.read_text() == "mine"
    assert not (tmp_path / "none").exists()
    if kind in ("symbolic", "dangling"):
        with pytest.raises(UserError, match="is a link or no plain file"):
            is_locked(path)


def test_whoever_may_write_into_the_folder_may_hold_its_lock(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    before = os.umask(0o077)
    try:
        with locked(shared / ".lock", "me"):
            pass
    finally:
        os.umask(before)
    assert (shared / ".lock").stat().st_mode & 0o777 == 0o664


def test_the_lock_file_of_another_user_is_held_though_it_cannot_be_written(tmp_path):
    """The program gives up root, if it has it: root may write everything."""
    path = tmp_path / ".lock"
    path.write_text("somebody else, long ago")
    path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from looped_jax.lock import Held, is_locked, locked\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "path = Path(sys.argv[1])\n"
        "try:\n"
        "    with locked(path, 'me'): print('held' if is_locked(path) else 'not held')\n"
        "except Held as held: print('held by', held)\n"
    )
    run = lambda: subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert run() == "held\n"
    assert path.read_text() == "somebody else, long ago"
    with locked(path, "the first"):
        expected = "the first" if os.access(path, os.W_OK) else "somebody else, long ago"
        assert run() == f"held by {expected}\n"
