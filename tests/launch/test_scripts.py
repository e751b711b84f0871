"""The shell scripts, as far as they can be tested without installing anything."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import quickstart
from tests.launch.sweeps import ROOT

SCRIPTS = ["launch/quickstart.sh", "launch/test.sh", ".ci/run", "tests/slurm/slurm.sh"]
WITHOUT_SLURM = "-m pytest tests/launch -k slurm"
ENDING = f"\n{quickstart.HOW_PYTHON_IS_RUN}\n"
REQUIREMENTS = ["requirements.txt", "requirements-test.txt"]


@pytest.fixture
def clone(tmp_path):
    """A clone in a folder with blanks, whose .venv holds what is required."""
    clone = tmp_path / "a clone"
    for name in ("launch", ".ci"):
        shutil.copytree(ROOT / name, clone / name)
    (clone / "looped_jax").mkdir()
    for name in ("__init__", "missing_package", "errors", "lock"):  # of what runs before .venv
        shutil.copy(ROOT / "looped_jax" / f"{name}.py", clone / "looped_jax")
    (clone / ".venv" / "bin").mkdir(parents=True)
    for name in REQUIREMENTS:
        shutil.copy(ROOT / name, clone)
        shutil.copy(ROOT / name, clone / ".venv" / f"{name}.installed")
    install_python(clone, 'echo "$PWD: $@"')
    install_slurm(clone, "exit 0")
    return clone


def install_python(clone: Path, body: str) -> None:
    """Makes the .venv's python a script."""
    python = clone / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit\n{body}\n')
    python.chmod(0o755)


def install_slurm(clone: Path, body: str) -> None:
    """What .ci/run installs and starts a Slurm with; what it was told stands in a file."""
    script = clone / "tests" / "slurm" / "slurm.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.with_name("said").write_text("")
    script.write_text(f'#!/bin/sh\necho "$1" >>"$(dirname "$0")/said"\n{body}\n')
    script.chmod(0o755)


def start(script: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(script), *arguments],
        cwd="/",
        env={**os.environ, "PYTHON": sys.executable, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(script: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = start(script, *arguments, **environment)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


@pytest.mark.parametrize("script", [*SCRIPTS, "launch/environment.sh"])
def test_syntax(script):
    subprocess.run(["bash", "-n", ROOT / script], check=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_executed(script):
    assert os.access(ROOT / script, os.X_OK)


def test_quickstart_runs_in_the_project_wherever_it_is_typed(clone):
    assert run(clone / "launch/quickstart.sh", "--workers=1") == (
        0, f"{clone}: -m launch.quickstart --workers=1\n", "",
    )  # fmt: skip


def test_all_checks_run(clone):
    tests = (
        "pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=12"
    )
    checks = ["ruff check", "ruff format --check", "mypy", tests]
    expected = "".join(f"{clone}: -m {check}\n" for check in checks) + ENDING
    assert run(clone / "launch/test.sh") == (0, expected, "")
    without_slurm = f"{clone}: {WITHOUT_SLURM}\n{ENDING}"
    assert run(clone / ".ci/run") == (0, without_slurm + expected, "")
    assert (clone / "tests/slurm/said").read_text() == "install\nstart\nstop\n"


def test_tests_of_slurm_run_without_it_before_it_is_there(clone):
    """In a machine's own Slurm of the tests, too: its name is taken away."""
    said = clone / "tests/slurm/said"
    install_python(clone, f'echo "$2 $3 ${{TEST_SLURM_CONF-unset}} $(wc -l <"{said}")"')
    status, output, _ = run(clone / ".ci/run", TEST_SLURM_CONF="given")
    assert status == 0
    assert output.startswith("pytest tests/launch unset 0\n")
    assert re.search(r"^pytest -n /tmp/slurm\.\w+/slurm\.conf 2$", output, re.MULTILINE)
    install_python(clone, '[ "$3" != tests/launch ]')
    assert run(clone / ".ci/run")[0] == 1


@pytest.mark.parametrize("step", ["install", "start"])
def test_checks_run_without_slurm_and_say_so(clone, step):
    install_slurm(clone, f'[ "$1" != {step} ] || {{ echo "error: no apt-get" >&2; exit 2; }}')
    status, output, errors = run(clone / ".ci/run")
    assert (status, output.count(": -m ")) == (0, 5)
    assert errors.startswith("error: no apt-get\nWARNING: there is no Slurm here: ")
    assert "stop" not in (clone / "tests/slurm/said").read_text()


def test_arguments_go_to_pytest_alone(clone):
    expected = f"{clone}: -m pytest -m slow tests/a b\n{ENDING}"
    assert run(clone / "launch/test.sh", "-m", "slow", "tests/a b") == (0, expected, "")


def test_a_failed_check_fails(clone):
    install_python(clone, '[ "$2" != mypy ]')
    assert run(clone / ".ci/run")[:2] == (1, ENDING * 2)


def test_changed_requirements_are_installed_once(clone):
    install_python(clone, '[ "$2" = pip ] && echo "Collecting $@"; exit 0')
    (clone / "requirements.txt").write_text("more\n")
    status, output, _ = run(clone / "launch/quickstart.sh")
    assert status == 0
    assert output.startswith("installing requirements.txt into .venv (log: ")
    assert f"-r {clone}/requirements.txt" in (clone / ".venv/requirements.txt.log").read_text()
    assert run(clone / "launch/quickstart.sh") == (0, "", "")


def test_a_failed_installation_shows_its_end_and_is_tried_again(clone):
    install_python(clone, '[ "$3" = --version ] && exit; echo "ERROR: no such package"; exit 1')
    (clone / "requirements.txt").write_text("more\n")
    for _ in range(2):
        status, _, errors = run(clone / "launch/quickstart.sh")
        assert status == 2
        assert errors == (
            "ERROR: no such package\nerror: pip could not install requirements.txt; all it said "
            f"is in {clone}/.venv/requirements.txt.log\n"
        )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('case "$2" in *print*) echo 3.9;; *) exit 1;; esac', "is Python 3.9; allowed: at least"),
        ("exit 1", "does not run: set PYTHON to a Python of at least 3.11"),
    ],
)
def test_an_unusable_python_is_refused(clone, body, message):
    python = clone / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    status, output, errors = run(clone / "launch/quickstart.sh", PYTHON=str(python))
    assert (status, output) == (2, "")
    assert errors.startswith(f"error: {python} {message}")
    assert errors.count("\n") == 1


def test_a_second_quickstart_is_refused_until_the_first_ends(clone):
    install_python(clone, "read line")  # waits for its input to end
    with start(clone / "launch/quickstart.sh") as first:
        lock = clone / "runs" / ".quickstart.lock"
        while not (lock.exists() and lock.read_text()):
            assert first.poll() is None
        second = run(clone / "launch/quickstart.sh")
        first.kill()
    assert second == (
        2, "", f"error: launch/quickstart.sh is already running: pid {first.pid}\n",
    )  # fmt: skip
    assert run(clone / "launch/quickstart.sh")[0] == 1  # no input: `read` fails, nothing refuses


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_link_in_the_place_of_the_lock_is_refused(clone, kind):
    """What it leads to keeps its content."""
    install_python(clone, "echo never")
    victim, lock = clone / "victim", clone / "runs" / ".quickstart.lock"
    victim.write_text("mine")
    lock.parent.mkdir()
    lock.symlink_to(victim) if kind == "symbolic" else lock.hardlink_to(victim)
    status, output, errors = run(clone / "launch/quickstart.sh")
    assert (status, output) == (2, "")
    message = "runs/.quickstart.lock is a link or no plain file; allowed: a lock file, or none"
    assert errors == f"error: {message}\n"
    assert victim.read_text() == "mine"


def test_a_killed_start_whose_child_is_still_at_work_is_waited_for(clone):
    lock = clone / "runs" / ".quickstart.lock"
    lock.parent.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    with open(lock, "w") as file:
        file.write(f"pid {gone.pid}")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        second = start(clone / "launch/quickstart.sh")
        assert second.stderr is not None
        waiting = second.stderr.readline()
    output, errors = second.communicate(timeout=60)
    assert (second.returncode, output, errors) == (0, f"{clone}: -m launch.quickstart\n", "")
    assert waiting == f"waiting for launch/quickstart.sh (pid {gone.pid}) to end\n"
