"""The Slurm backend: arrays of jobs through submitit. The jobs go on when the sweep has ended.

Which runs are in the queue is found out anew each time: from the names of what was submitted
(`launch.slurm.plans`) and from squeue. Nothing depends on accounting (sacct) or on what an earlier
call remembers.
"""

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from launch.backend import Ended
from launch.local import OUTPUT, last_lines
from launch.machine import ROOT
from launch.slurm.job import TIME_SIGNAL, Order, run_group
from launch.slurm.plans import Submission, plan_submission, read_submissions
from launch.slurm.resources import Layout, Resources
from launch.snapshot import snapshot
from launch.study import PlannedRun, Study
from looped_jax.errors import UserError
from looped_jax.run_folder import State

T = TypeVar("T")

ARRAY_SIZE = 1000  # most jobs of one array that Slurm takes by default
LEAST_POLL_SECONDS, MOST_POLL_SECONDS = 2.0, 30.0
_FIELDS = "%i|%j|%K|%T|%r"  # job id, name, index in the array, state, reason


@dataclass(frozen=True)
class Job:
    """A job in the queue.

    Attributes:
      state: as squeue writes it: PENDING, RUNNING, COMPLETING, ...
      reason: why it is pending; "None" if it is not.
    """

    id: str
    state: str
    reason: str

    @property
    def is_running(self) -> bool:
        return self.state not in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.state == "PENDING" and self.reason != "None" else ""
        return f"{self.id} {self.state.lower()}{reason}"


class SlurmUnreachable(UserError):
    """Slurm did not answer."""


class SlurmBackend:
    """Submits the runs of a study, and looks after them.

    Attributes:
      stopping: what a sweep says when it is asked to stop waiting.
    """

    stopping = "no longer waiting; the jobs go on"

    def __init__(self, study: Study, out: Path, resources: Resources):
        """
        Raises:
          UserError: submitit or Slurm is missing, or the resources do not fit a run.
        """
        self._submitit = import_submitit()
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise UserError("--backend=slurm: no sbatch and srun on this machine; allowed where "
                            "Slurm's client commands are, or --backend=local")  # fmt: skip
        self._study, self._out, self._resources = study, out, resources
        self._runs = {run.folder.path.name: run for run in study.runs}
        self._layouts = {run.name: layout_of(run, resources) for run in study.runs}
        self._watched: dict[str, float] = {}  # run names -> when it was first seen in the queue
        self._jobs: dict[str, Job] = {}
        self._began = self._asked = time.monotonic()

    def submit(self, groups: Sequence[Sequence[PlannedRun]]) -> None:
        """One job for each group, one array for all whose processes are laid out alike."""
        alike: dict[Layout, list[Sequence[PlannedRun]]] = {}
        for group in groups:
            for layout in dict.fromkeys(self._layouts[run.name] for run in group):
                part = [run for run in group if self._layouts[run.name] == layout]
                alike.setdefault(layout, []).append(part)
        for layout, of_layout in alike.items():
            for of_array in arrays_of(of_layout):
                self._submit_array(of_array, layout)

    def jobs(self) -> dict[str, Job]:
        """Asks Slurm which runs that are not over are in the queue: run name -> job.

        Raises:
          SlurmUnreachable: squeue failed.
        """
        submissions = {each.name: each for each in read_submissions(self._out)}
        found = {}
        for job_id, name, index, state, reason in squeue(submissions):
            submission = submissions[name]
            number = int(index) if index.isdigit() else 0
            for folder in submission.groups[number]:
                run = self._runs.get(folder)
                if run is not None and snapshot(run).state != "finished":
                    found[run.name] = Job(job_id, state, reason)
        return found

    def settle(self, jobs: dict[str, Job]) -> None:
        """Marks runs as failed whose job died without a word in the run's folder.

        Args:
          jobs: what is in the queue.
        """
        for submission, index, runs in self._last_jobs():
            status = submission.exit_status(index)
            if status is None or any(run.name in jobs for run in runs):
                continue
            states = {run: snapshot(run).state for run in runs}
            # It died at the run that it was at, or before it came to any.
            at_hand = [run for run in runs if states[run] == "running"]
            for run in at_hand or [run for run in runs if states[run] is None]:
                self._mark_failed(run, submission, index, status)
            submission.forget_exit_status(index)

    def poll(self, seconds: float) -> list[Ended]:
        time.sleep(seconds)
        waited = time.monotonic() - self._asked
        patience = 0.1 * (time.monotonic() - self._began)  # long jobs are asked after less often
        if waited < min(max(patience, LEAST_POLL_SECONDS), MOST_POLL_SECONDS):
            return []
        try:
            return self._look()
        except SlurmUnreachable as error:
            print(f"{error}; asking again", file=sys.stderr, flush=True)
            return []
        finally:
            self._asked = time.monotonic()

    def active(self) -> list[PlannedRun | None]:
        """Runs whose job is running."""
        return [
            run
            for run in self._study.runs
            if run.name in self._jobs and self._jobs[run.name].is_running
        ]

    def is_busy(self) -> bool:
        return bool(self._jobs)

    def stop(self) -> list[Ended]:
        """The jobs go on."""
        return []

    def __enter__(self) -> Self:
        self._jobs = self.jobs()
        self._watched = dict.fromkeys(self._jobs, time.monotonic())
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _look(self) -> list[Ended]:
        before, self._jobs = self._jobs, self.jobs()
        for name in self._jobs:  # another call may have submitted more
            self._watched.setdefault(name, time.monotonic())
        gone = [run for run in self._study.runs if run.name in before.keys() - self._jobs.keys()]
        if gone:
            self.settle(self._jobs)
        return [self._ended(run) for run in gone]

    def _ended(self, run: PlannedRun) -> Ended:
        seconds = time.monotonic() - self._watched[run.name]
        found = snapshot(run)
        state: State = "interrupted"
        reason = "its job has left the queue"
        if found.state not in (None, "running"):
            state, reason = found.state, found.reason or ""
        return Ended(run, state, reason, seconds)

    def _submit_array(self, groups: Sequence[Sequence[PlannedRun]], layout: Layout) -> None:
        submission = plan_submission(self._study.name, self._out, groups)
        parameters = job_parameters(
            self._resources, layout, submission.name, submission.died_path("")
        )
        orders = [([_order(run) for run in group],) for group in groups]
        submit_array(self._submitit, submission.folder, parameters, run_group, orders)

    def _last_jobs(self) -> list[tuple[Submission, int, list[PlannedRun]]]:
        """The jobs that were the last to have a run, with the runs of which that is so."""
        last: dict[str, tuple[Submission, int]] = {}
        for submission in read_submissions(self._out):
            for index, group in enumerate(submission.groups):
                last |= {name: (submission, index) for name in group if name in self._runs}
        runs: dict[tuple[Path, int], list[PlannedRun]] = {}
        for name, (submission, index) in last.items():
            runs.setdefault((submission.folder, index), []).append(self._runs[name])
        jobs = {(submission.folder, index): submission for submission, index in last.values()}
        return [(jobs[job], job[1], of_job) for job, of_job in runs.items()]

    def _mark_failed(
        self, run: PlannedRun, submission: Submission, index: int, status: int
    ) -> None:
        reason = f"its job exited with status {status}"
        log = submission.log(index)
        # Somebody else who holds the folder by now writes the status there.
        with contextlib.suppress(UserError), run.folder.lock():
            if log is not None:
                with open(run.folder.path / OUTPUT, "a") as output:
                    output.write(f"{reason}; {log} ends:\n{last_lines(log)}\n")
            run.folder.set_status("failed", reason=reason)


def arrays_of(jobs: Sequence[T]) -> list[Sequence[T]]:
    """Jobs in their order, as many together as an array may have."""
    return [jobs[first : first + ARRAY_SIZE] for first in range(0, len(jobs), ARRAY_SIZE)]


def submit_array(
    submitit: Any,
    folder: Path,
    parameters: dict[str, Any],
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
) -> None:
    """Submits an array with a job for each call of a function.

    Args:
      folder: of the submission; removed where Slurm refuses it.

    Raises:
      UserError: Slurm refuses the jobs.
    """
    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(**parameters)
    try:
        # What sbatch says goes into one line below.
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            for arguments in calls:
                executor.submit(function, *arguments)
    except submitit.core.utils.FailedJobError as error:
        shutil.rmtree(folder)
        lines = [line for line in str(error).splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("sbatch: error:")), lines[-1])
        raise UserError(f"Slurm refuses the jobs: {said.strip()}") from None


def job_parameters(
    resources: Resources, layout: Layout, name: str, died_path: Path
) -> dict[str, Any]:
    """What submitit is told of the jobs of an array.

    What it does not know goes through additional_parameters.

    Args:
      name: of the array.
      died_path: what the file with a job's exit status begins with; its index follows.
    """
    setup = [f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"]
    setup.append(f"export NPROC={resources.cpus}")  # threads of XLA
    if layout.processes > 1 and layout.tasks_per_node == 1 and resources.gpus:
        # Under Slurm, JAX gives each process one GPU unless it is told.
        setup.append(f"export JAX_LOCAL_DEVICE_IDS={','.join(map(str, range(resources.gpus)))}")
    died = shlex.quote(str(died_path)) + "${SLURM_ARRAY_TASK_ID:-0}"
    setup.append(f"rm -f {died}")  # of a start before it was requeued
    return {
        "job_name": name,
        "partition": resources.partition,
        "time": resources.time,
        "nodes": layout.nodes,
        "ntasks_per_node": layout.tasks_per_node,
        "cpus_per_task": resources.cpus,
        "gpus_per_node": resources.gpus or None,
        "array_parallelism": resources.at_once,
        "signal_delay_s": resources.grace,
        "stderr_to_stdout": True,
        "setup": [*setup, *resources.setup],
        "srun_args": ["--kill-on-bad-exit=1", f"--cpus-per-task={resources.cpus}"],
        "teardown": [
            "status=$?",
            f'if [ "$status" -ne 0 ]; then echo "$status" >{died}; fi',
            'exit "$status"',
        ],
        "additional_parameters": {"requeue": True, **resources.extra},
    }


def import_submitit() -> Any:
    """The package, told which signal says that time is up. Raises UserError if it is missing."""
    # submitit takes the signal's name from the environment when it is imported.
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = TIME_SIGNAL.name.removeprefix("SIG")
    try:
        import submitit
    except ImportError:
        raise UserError("--backend=slurm needs submitit: pip install submitit") from None
    return submitit


def layout_of(run: PlannedRun, resources: Resources) -> Layout:
    """Where the processes of a run go. Raises UserError if the resources do not fit it."""
    try:
        return resources.layout(run.resolved.processes.count)
    except UserError as error:
        raise UserError(f"{run.name}: {error}") from None


def _order(run: PlannedRun) -> Order:
    return {"folder": str(run.folder.path.resolve()), "config": run.config}


def squeue(names: Sequence[str] | dict[str, Any]) -> list[list[str]]:
    """The jobs with these names that are in the queue, one element of an array each."""
    if not names:
        return []
    command = [
        "squeue", "--noheader", "--array", f"--name={','.join(names)}", f"--format={_FIELDS}",
    ]  # fmt: skip
    asked = subprocess.run(command, capture_output=True, text=True)
    if asked.returncode != 0:
        said = asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"]
        raise SlurmUnreachable(f"squeue: {said[-1]}")
    return [line.split("|") for line in asked.stdout.splitlines() if line]
