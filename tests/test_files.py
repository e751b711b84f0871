"""Files are replaced whole or not at all."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.files import (
    read_json,
    replacing,
    sha256_of_file,
    sha256_of_json,
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
