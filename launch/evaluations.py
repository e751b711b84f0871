"""The evaluation of a study as jobs: one process a run, on this machine or on a Slurm cluster.

Each is `python -m looped_jax.evaluate` on one run folder. What is measured stays, so that the same
call does what is missing; what failed is listed with its last lines.
"""

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from launch.local import last_lines
from launch.machine import child_environment, worker_environments
from launch.slurm.backend import (
    arrays_of,
    import_submitit,
    job_parameters,
    squeue,
    submit_array,
)
from launch.slurm.resources import Resources
from looped_jax.files import read_json, write_json

LOG = "evaluation.log"  # in a run folder: what the newest evaluation of it printed
SUBMISSIONS = "evaluations/slurm"  # in a study's folder
PLAN = "plan.json"
POLL_SECONDS = 0.2
FAILED_STATUS = 1


@dataclass(frozen=True)
class Evaluation:
    """A run to be measured: its folder, and the arguments of `looped_jax.evaluate`."""

    folder: Path
    arguments: Sequence[str]

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "looped_jax.evaluate", *self.arguments]

    @property
    def log(self) -> Path:
        return self.folder / LOG


def run_here(
    evaluations: Sequence[Evaluation], workers: int | None, say: Callable[[str], None]
) -> int:
    """Measures runs, several at a time, and says how each ended.

    Args:
      workers: at a time; None for one a core, or one an accelerator.

    Returns:
      Exit status: 0 if every one was measured.
    """
    free = worker_environments(workers)
    waiting, failed = list(evaluations), 0
    at_work: dict[subprocess.Popen[bytes], tuple[Evaluation, dict[str, str]]] = {}
    try:
        while waiting or at_work:
            while waiting and free:
                each, environment = waiting.pop(0), free.pop()
                at_work[_start(each, environment)] = each, environment
            time.sleep(POLL_SECONDS)
            for process in [process for process in at_work if process.poll() is not None]:
                each, environment = at_work.pop(process)
                free.append(environment)
                failed += process.returncode != 0
                say(_ended(each, process.returncode, len(waiting) + len(at_work)))
    finally:
        for process in at_work:  # after Ctrl-C; what a suite has measured is written
            process.terminate()
    if failed:
        say(f"{failed} of {len(evaluations)} runs were not measured; the same call tries again")
    return FAILED_STATUS if failed else 0


def _start(each: Evaluation, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    with open(each.log, "wb") as log:
        return subprocess.Popen(
            each.command, env={**child_environment(), **environment},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def _ended(each: Evaluation, status: int, left: int) -> str:
    if status == 0:
        return f"{each.folder.name}: measured; {left} left"
    return f"{each.folder.name}: exit status {status}; {each.log} ends:\n{last_lines(each.log)}"


def submit(
    evaluations: Sequence[Evaluation], study: Path, resources: Resources, processes: int,
    say: Callable[[str], None],
) -> int:  # fmt: skip
    """Submits arrays with a job for each run that no job in the queue measures, and ends.

    Args:
      study: the folder that holds the runs; submissions and logs go into it.
      processes: that measure a run together.

    Returns:
      Exit status 0.

    Raises:
      UserError: submitit or Slurm is missing, or Slurm refuses the jobs.
    """
    submitit = import_submitit()
    queued = _in_the_queue(study)
    left = [each for each in evaluations if str(each.folder.resolve()) not in queued]
    for of_array in arrays_of(left):
        name = f"evaluate-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        folder = study.resolve() / SUBMISSIONS / name
        folder.mkdir(parents=True)
        write_json(folder / PLAN, {"runs": [str(each.folder.resolve()) for each in of_array]})
        layout = resources.layout(processes)
        parameters = job_parameters(resources, layout, name, folder / "died_")
        calls = [(each.command, str(each.log)) for each in of_array]
        submit_array(submitit, folder, parameters, measure, calls)
    say(f"{len(left)} runs submitted, {len(evaluations) - len(left)} in the queue; the same call "
        "submits what is missing by then")  # fmt: skip
    return 0


def _in_the_queue(study: Path) -> set[str]:
    """Folders of the runs that jobs in the queue measure."""
    plans = {
        path.parent.name: read_json(path)["runs"] for path in study.glob(f"{SUBMISSIONS}/*/{PLAN}")
    }
    found = squeue(plans)
    return {plans[name][int(index) if index.isdigit() else 0] for _, name, index, *_ in found}


def measure(command: Sequence[str], log: str) -> NoReturn:
    """What a job runs."""
    with open(log, "ab") as output:
        done = subprocess.run(command, stdout=output, stderr=output, env=child_environment())
    if done.returncode != 0:
        print(f"exit status {done.returncode}; {log} ends:\n{last_lines(Path(log))}", flush=True)
    sys.exit(done.returncode)
