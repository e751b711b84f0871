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
