"""Files are replaced whole or not at all."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.files import (
    read_json,
    replacing,
    replacing_folder,
    sha256_of_file,
    sha256_of_json,
    subfolder,
    sweep,
    writable_folder,
    write_bytes,
    write_json,
)


def test_json_round_trip(tmp_path):
    value = {"φ": 0.5, "n": np.int64(3), "x": np.float32(0.25), "path": Path("a/b"), "none": None}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == {
        "φ": 0.5,
        "n": 3,
        "x": 0.25,
        "path": "a/b",
        "none": None,
    }
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("value", [float("nan"), np.float64("inf")])
def test_nan_is_refused_and_the_old_file_stays(tmp_path, value):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": value})
    assert read_json(tmp_path / "a.json") == 1


def test_unknown_type_is_refused(tmp_path):
    with pytest.raises(TypeError, match="a set has no JSON form"):
        write_json(tmp_path / "a.json", {1})


def test_an_error_while_writing_leaves_the_old_content(tmp_path):
    write_bytes(tmp_path / "a", b"old")

    def write_half():
        with replacing(tmp_path / "a") as file:
            file.write(b"ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_killed_writer_leaves_the_old_content(tmp_path):
    write_bytes(tmp_path / "a", b"old")
    program = (
        "import os, sys; from looped_jax.files import replacing\n"
        "with replacing(sys.argv[1]) as f: f.write(b'new'); f.flush(); os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a"], cwd=root, check=False)
    assert done.returncode == -9
    assert (tmp_path / "a").read_bytes() == b"old"


def test_digests(tmp_path):
    (tmp_path / "a").write_bytes(b"abc" * 100_000)
    assert sha256_of_file(tmp_path / "a") == hashlib.sha256(b"abc" * 100_000).hexdigest()
    assert sha256_of_json({"b": 1, "a": [1.5]}) == hashlib.sha256(b'{"a":[1.5],"b":1}').hexdigest()


def test_unreadable_json_names_the_file(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none\.json: No such file"):
        read_json(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text(json.dumps({"a": 1})[:-1])
    with pytest.raises(UserError, match=r"cut\.json is not a JSON file"):
        read_json(tmp_path / "cut.json")


def test_writable_folder(tmp_path):
    assert writable_folder(tmp_path / "a" / "b").is_dir()
    assert os.listdir(tmp_path / "a" / "b") == []
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write into folder .*file/x: Not a directory"):
        writable_folder(tmp_path / "file" / "x")


def test_who_already_reads_goes_on_reading_the_old_content(tmp_path):
    write_bytes(tmp_path / "a", b"old")
    with open(tmp_path / "a", "rb") as reader:
        write_bytes(tmp_path / "a", b"new")
        assert reader.read() == b"old"
    assert (tmp_path / "a").read_bytes() == b"new"


def leave_unfinished(path, content=b"half", age=3600.0):
    """What a writer of `path` that was killed an hour ago left."""
    leftover = path.with_name(f"{path.name}.unfinished-123")
    leftover.write_bytes(content)
    os.utime(leftover, (time.time() - age,) * 2)
    return leftover


def test_links_are_replaced_and_never_followed(tmp_path):
    """Neither one at the place of the file, nor one that somebody laid aside for us."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "victim")
    for guess in (os.getpid(), os.getpid() + 1, 0):
        (tmp_path / f"a.unfinished-{guess}").symlink_to(tmp_path / "victim")
    write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()


def test_the_name_aside_cannot_be_known_before(tmp_path):
    def name_aside():
        with replacing(tmp_path / "a"):
            return {path.name for path in tmp_path.iterdir()} - {"a"}

    names = set().union(*(name_aside() for _ in range(20)))
    assert len(names) == 20
    assert not any(str(os.getpid()) == name.rpartition("-")[2] for name in names)


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    old = leave_unfinished(tmp_path / "a")
    other = leave_unfinished(tmp_path / "b")
    young = tmp_path / "a.unfinished-456"
    young.touch()
    write_bytes(tmp_path / "a", b"new")
    assert not old.exists()
    assert other.exists()
    assert young.exists()  # its writer may be about to lock it
    with replacing(tmp_path / "b") as file:
        at_work = next(tmp_path.glob("b.unfinished-*"))
        os.utime(at_work, (0, 0))
        write_bytes(tmp_path / "b", b"the second of two writers")
        sweep(tmp_path)
        assert at_work.exists()
        file.write(b"the first")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "b").read_bytes() == b"the first"


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    killed = tmp_path / "out.unfinished-1"
    killed.mkdir()
    (killed / "half").touch()
    os.utime(killed, (0, 0))
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "out") as aside:
        (aside / "a").write_text(str(1 / 0))
    assert os.listdir(tmp_path) == []
    with replacing_folder(tmp_path / "deep" / "out") as aside:
        (aside / "a").touch()
        assert not (tmp_path / "deep" / "out").exists()
    assert os.listdir(tmp_path / "deep" / "out") == ["a"]


def test_a_folder_within_may_not_be_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "inspect").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"inspect is a symbolic link; allowed: a folder in "):
        subfolder(tmp_path, "inspect")
    assert subfolder(tmp_path, "own").is_dir()


def test_json_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"a\.json is not a JSON file to read: it is nested too de"):
        read_json(tmp_path / "a.json")
