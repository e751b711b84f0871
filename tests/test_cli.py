"""What a program prints and exits with, seen from outside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import errno, os
from absl import flags, logging
from ml_collections import config_flags
from looped_jax import cli
from looped_jax.errors import UserError

CONFIG = config_flags.DEFINE_config_file("config")
NUMBER = flags.DEFINE_integer("number", 0, "A number.")

def main(_):
    logging.info("chatter")
    if NUMBER.value == 1:
        raise UserError("number is 1,\\n  but has to be 2")
    if NUMBER.value == 2:
        raise KeyboardInterrupt
    if NUMBER.value == 3:
        raise ZeroDivisionError("a bug")
    if NUMBER.value == 4:
        return 4
    if NUMBER.value == 5:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/one/metrics.jsonl")
    if NUMBER.value == 6:
        print("φ = 0.5 ± 0.1")
        return 0
    if NUMBER.value == 7:
        for _ in range(100_000):
            print("a line")
    print("width", CONFIG.value and CONFIG.value.model.width)

if __name__ == "__main__":
    cli.run(main)
"""
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": os.environ["PATH"]}
CONFIG = """
import ml_collections

def get_config():
    return ml_collections.ConfigDict({"seed": 0, "model": {"width": 8}})
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "good.py").write_text(CONFIG)
    (folder / "bug.py").write_text(CONFIG.replace("return", "c =").replace("})", "}); c.sed.x = 1"))
    (folder / "argument.py").write_text(CONFIG.replace("get_config()", "get_config(a, b)"))

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "program.py", *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    run.folder = folder
    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--number=1"], "number is 1, but has to be 2"),
        (["--number=x"], "flag --number=x: invalid literal for int() with base 10: 'x'"),
        (["--numbr=1"], "Unknown command line flag 'numbr'. Did you mean: number ?"),
        (["stray"], "unexpected argument 'stray': options are --name=value"),
        (
            ["--config=none.py"],
            "cannot read the config: [Errno 2] No such file or directory: 'none.py'",
        ),
        (
            ["--config=good.py", "--config.model.widht=3"],
            "unknown config key 'widht' in --config.model.widht: the nearest is 'width'",
        ),
        (
            ["--config", "good.py", "--config.sede", "3"],
            "unknown config key 'sede' in --config.sede: the nearest is 'seed'",
        ),
        (
            ["--config=good.py", "--config.model.width=wide"],
            "flag --config.model.width=wide: invalid literal for int() with base 10: 'wide'",
        ),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(run, arguments, message):
    assert run(*arguments) == (2, "", f"error: {message}\n")


def test_a_config_that_cannot_be_called_is_one_line(run):
    status, _, error = run("--config=argument.py")
    assert status == 2
    assert error.startswith("error: flag --config=argument.py: Error whilst parsing config file: ")
    assert error.count("\n") == 1
    assert "missing 2 required positional arguments" in error


def test_success_is_quiet(run):
    assert run("--config=good.py", "--config.model.width=16") == (0, "width 16\n", "")


def test_the_status_of_main_is_the_status_of_the_program(run):
    assert run("--number=4")[0] == 4


def test_verbosity_brings_back_the_log(run):
    assert "chatter" in run("--verbosity=0")[2]


def test_interrupt(run):
    assert run("--number=2") == (130, "", "interrupted\n")


@pytest.mark.parametrize("arguments", [["--number=3"], ["--config=bug.py"]])
def test_a_bug_keeps_its_traceback(run, arguments):
    status, _, error = run(*arguments)
    assert status == 1
    assert "Traceback" in error


def test_help_succeeds(run):
    status, output, _ = run("--help")
    assert status == 0
    assert "A number." in output


def test_a_full_disk_is_a_line(run):
    status, _, errors = run("--number=5")
    reason = "No space left on device"
    assert (status, errors) == (1, f"failed: cannot write runs/one/metrics.jsonl: {reason}\n")


def test_a_terminal_without_utf8_gets_what_it_can_show(run, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "PYTHONIOENCODING", "ascii:strict")
    assert run("--number=6") == (0, "? = 0.5 ? 0.1\n", "")


def test_a_reader_that_has_gone_gets_no_traceback(run):
    command = f"{sys.executable} program.py --number=7 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=run.folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, "a line\n", "")
