"""Sweeps as a user starts them, and what the tests of them look at."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from looped_jax.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
TINY = Path(__file__).with_name("tiny_study.py")
PLANNED = Path(__file__).with_name("planned_study.py")
SLURM = Path(__file__).with_name("slurm_study.py")
SLURM_LONG = Path(__file__).with_name("slurm_long_study.py")
BROKEN = Path(__file__).with_name("broken_study.py")
TIMEOUT_S = 300


class Sweeps:
    """Starts `python -m launch.sweep`; what is left running is killed at the end."""

    def __init__(self, data: Path, environment: dict[str, str]):
        self._data, self._environment = data, environment
        self._started = contextlib.ExitStack()

    def start(
        self, out: Path, study: Path = TINY, *arguments: str, **more: str
    ) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "launch.sweep", f"--study={study}", f"--out={out}",
            f"--data={self._data}", *arguments,
        ]  # fmt: skip
        process = self._started.enter_context(
            subprocess.Popen(
                command, cwd=ROOT, env=self._environment | more, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        self._started.callback(process.kill)
        return process

    def run(self, *arguments: Any, **more: str) -> tuple[int, str, str]:
        """Runs a sweep to its end: (exit status, output, errors)."""
        process = self.start(*arguments, **more)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, output, errors

    def close(self) -> None:
        self._started.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.05)


def folders(out: Path) -> dict[str, RunFolder]:
    """Run folders by the name of their run."""
    return {path.name.rpartition("-")[0]: RunFolder(path) for path in (out / "runs").glob("*")}


def states(out: Path) -> dict[str, str]:
    """What status.json of each run says, by name; runs without one are left out."""
    found = {name: folder.status() for name, folder in folders(out).items()}
    return {name: status.state for name, status in found.items() if status}


def losses(out: Path) -> dict[str, float]:
    """Final losses by name; every run has to be finished."""
    return {name: folder.read_summary()["loss"] for name, folder in folders(out).items()}


def saved_steps(out: Path) -> int:
    """The most steps that an unfinished run has saved."""
    found = [f.status() for f in folders(out).values() if not f.is_finished()]
    return max((status.step or 0 for status in found if status), default=0)
