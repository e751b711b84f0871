"""An entry point in a Python without the project's packages, and in one that lacks a single one."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY_POINTS = [
    "looped_jax.train", "looped_jax.evaluate", "looped_jax.generate", "looped_jax.data.prepare",
    "looped_jax.interchange", "launch.sweep", "analysis",
]  # fmt: skip


def python(*arguments: str) -> tuple[int, str, str]:
    """Python without site-packages: (exit status, output, errors)."""
    done = subprocess.run(
        [sys.executable, "-S", *arguments], cwd=ROOT, env={}, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_an_entry_point_is_one_line_and_status_2(module):
    status, output, errors = python("-m", module, "--help")
    assert (status, output) == (2, "")
    assert errors.startswith("error: package '")
    assert errors.endswith(
        f"' is not installed for {sys.executable}: type . .venv/bin/activate first "
        "(launch/quickstart.sh makes .venv), or pip install -r requirements.txt\n"
    )


@pytest.mark.parametrize("package", ["looped_jax", "launch", "analysis"])
def test_programs_of_others_keep_their_traceback(package):
    status, _, errors = python("-c", f"import {package}\nimport absl")
    assert status == 1
    assert errors.startswith("Traceback")


@pytest.mark.parametrize("error", ["ModuleNotFoundError(name='analysis.new')", "ValueError()"])
@pytest.mark.parametrize("package", ["looped_jax", "analysis"])
def test_bugs_keep_their_traceback(package, error):
    """Also a module of ours that is not there."""
    path = ROOT / package / "missing_package.py"
    program = f"import sys, runpy\nsys.argv = ['-m']\nrunpy.run_path({str(path)!r})\nraise {error}"
    status, _, errors = python("-c", program)
    assert status == 1
    assert errors.startswith("Traceback")
