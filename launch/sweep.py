"""Runs a study: a grid of runs, several at a time, on this machine or on a Slurm cluster.

    python -m launch.sweep --study=configs/studies/quickstart.py --out=runs/quickstart --dry_run
    python -m launch.sweep --study=configs/studies/quickstart.py --out=runs/quickstart
    python -m launch.sweep --study=… --out=… --backend=slurm --slurm_partition=gpu --slurm_gpus=1
    python -m launch.sweep --study=configs/studies/isodepth.py:r=4 --out=… \
      --config.model.compute_dtype=float32

What stands after the colon is the study's own argument; --config.key=value changes all its runs.

Typed again it goes on: finished runs stay, interrupted ones resume from their last checkpoint. A
run that diverged stays too, since it would again. On this machine failed runs are tried again. Exit
status 0 when every run is finished, 1 when one is not, 130 when interrupted.

With --backend=slurm it submits what is missing, says how every run is, and ends (--wait: when the
jobs have). Runs in the queue are left alone; failed ones are listed with their last lines and, with
--retry_failed, submitted again. Exit status 0 when every run is finished or in the queue.
"""

import contextlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from absl import flags
from rich.console import Console

from launch import overrides
from launch.backend import Backend, Ended
from launch.local import LocalBackend
from launch.machine import worker_environments
from launch.shown.display import SweepDisplay, failure_lines, is_over
from launch.shown.estimate import describe_plan
from launch.shown.table import results_table
from launch.slurm import resources
from launch.slurm.backend import Job, SlurmBackend
from launch.slurm.preview import describe_jobs, most_gpus
from launch.slurm.resources import Resources, resources_from_flags
from launch.snapshot import Snapshot, snapshot
from launch.study import PlannedRun, Study, group_by_shape, load_study, refuse_strangers, write_plan
from looped_jax import cli
from looped_jax.errors import UserError
from looped_jax.files import writable_folder
from looped_jax.interruption import StopRequest
from looped_jax.lock import Held, locked

UNFINISHED_STATUS = 1
# States of runs that a cluster is given; None is a run that never started.
MISSING = (None, "running", "interrupted")
POLL_SECONDS = 0.25
LOCAL_OPTIONS = ("workers",)
SLURM_OPTIONS = ("slurm_job", "retry_failed", "wait", "peak_flops", "share")


def run_study(study: Study, out: Path, workers: int | None, console: Console, again: str) -> int:
    """Runs what is left of a study on this machine.

    Args:
      study: planned with folders below `out`.
      workers: processes that train at once; None for as many as the machine suggests.
      console: where progress and results go.
      again: the command to type after an interruption.

    Returns:
      0 if all runs are finished, 1 if not, 130 when interrupted.

    Raises:
      UserError: another sweep is at work in `out`, it holds runs that the study no longer has, or
        worker processes cannot start.
    """
    environments = worker_environments(workers)
    with _only_sweep_in(writable_folder(out)):
        refuse_strangers(study, out)
        write_plan(study, out)
        states = {run.name: snapshot(run) for run in study.runs}
        left = [run for run in study.runs if not is_over(states[run.name])]
        _say(console, _heading(study, states, len(environments)))
        status, outcomes = 0, dict[str, Ended]()
        if left:
            backend = LocalBackend(environments[: len(left)], out / "workers")
            display = SweepDisplay(study, states, len(environments), console)
            status, outcomes = _execute(backend, group_by_shape(left), display, console)
    if status == cli.INTERRUPTED_STATUS:
        finished = sum(snapshot(run).state == "finished" for run in study.runs)
        _say(console, f"interrupted: {finished} of {len(study.runs)} runs finished; go on: {again}")
        return status
    return status or _report(study, outcomes, console, again)


def _execute(
    backend: Backend, groups: list[list[PlannedRun]], display: SweepDisplay, console: Console
) -> tuple[int, dict[str, Ended]]:
    """Runs groups to their end.

    Returns:
      0, or the exit status that says why it did not; and how each run ended, by name.
    """
    outcomes: dict[str, Ended] = {}

    def take(ended: list[Ended]) -> None:
        for each in ended:
            outcomes[each.run.name] = each
            display.ended(each)

    with StopRequest() as stop, display, backend:
        try:
            backend.submit(groups)
            while backend.is_busy():
                take(backend.poll(POLL_SECONDS))
                display.refresh(backend.active())
                if stop.signal_number is not None:
                    _say(console, backend.stopping)
                    take(backend.stop())
                    return cli.INTERRUPTED_STATUS, outcomes
        except KeyboardInterrupt:  # the second Ctrl-C
            return cli.INTERRUPTED_STATUS, outcomes
    return 0, outcomes


def _report(study: Study, outcomes: dict[str, Ended], console: Console, retry: str) -> int:
    """Prints the table of results and what is missing; `retry` is what tries it again."""
    states = {run.name: snapshot(run) for run in study.runs}
    _say(console, "\n" + results_table(study.runs, states))
    status = _name_unfinished(study, study.runs, outcomes, console)
    if any(state.state == "failed" for state in states.values()):
        _say(console, f"failed runs are tried again by: {retry}")
    return status


def _name_unfinished(
    study: Study, runs: Sequence[PlannedRun], outcomes: dict[str, Ended], console: Console
) -> int:
    """Says which of these runs are not finished, and why.

    Returns:
      0 if all are, 1 if not.
    """
    states = {run.name: snapshot(run) for run in runs}
    missing = [run for run in runs if states[run.name].state != "finished"]
    if not missing:
        return 0
    _say(console, f"\n{len(missing)} of {len(study.runs)} runs did not finish:")
    for run in missing:
        ended = outcomes.get(run.name, states[run.name])
        _say(console, f"{ended.state} {run.name}: {ended.reason}")
        if ended.state == "failed":
            _say(console, failure_lines(run))
    return UNFINISHED_STATUS


def submit_study(
    study: Study,
    out: Path,
    backend: SlurmBackend,
    console: Console,
    again: str,
    *,
    by_shape: bool,
    retry_failed: bool,
    wait: bool,
) -> int:
    """Submits what is missing of a study to a cluster, and says how every run is.

    Args:
      study: planned with folders below `out`.
      backend: for this study and folder.
      again: the command that goes on.
      by_shape: one job for all runs that share compiled programs; otherwise one for each run.
      retry_failed: submit failed runs, too.
      wait: until no run of the study is in the queue any more, with progress shown.

    Returns:
      0 if all runs are finished or in the queue, 1 if not, 130 when interrupted while waiting.

    Raises:
      UserError: another sweep is at work in `out`, it holds runs that the study no longer has, or
        Slurm does not answer or refuses the jobs.
    """
    with _only_sweep_in(writable_folder(out)):
        refuse_strangers(study, out)
        write_plan(study, out)
        jobs = backend.jobs()
        backend.settle(jobs)
        states = {run.name: snapshot(run) for run in study.runs}
        retried = ("failed",) if retry_failed else ()
        missing = [
            run
            for run in study.runs
            if run.name not in jobs and states[run.name].state in (*MISSING, *retried)
        ]
        by_size = sorted(missing, key=lambda run: -run.flops)
        groups = group_by_shape(missing) if by_shape else [[run] for run in by_size]
        if groups:
            backend.submit(groups)
        _say(console, _queue_heading(study, states, jobs, missing))
    retry = again if retry_failed else f"{again} --retry_failed"
    if wait:
        at_once = len(jobs) + len(groups)
        display = SweepDisplay(study, states, at_once, console)
        status, outcomes = _execute(backend, [], display, console)
        if status == cli.INTERRUPTED_STATUS:
            _say(console, f"look again: {again}")
            return status
        return _report(study, outcomes, console, retry)
    jobs = backend.jobs()
    states = {run.name: snapshot(run) for run in study.runs}
    _say(console, "\n" + results_table(study.runs, states, jobs))
    stopped = [run for run in study.runs if run.name not in jobs]
    status = _name_unfinished(study, stopped, {}, console)
    if jobs:
        _say(console, f"\nlook again, and submit what is missing by then: {again}")
    if any(states[run.name].state == "failed" for run in stopped):
        _say(console, f"failed runs are tried again by: {retry}")
    return status


def _heading(study: Study, states: dict[str, Snapshot], n_workers: int) -> str:
    counts = Counter(state.state for state in states.values())
    over = [f"{counts[state]} {state}" for state in ("finished", "diverged") if counts[state]]
    left = len(study.runs) - counts["finished"] - counts["diverged"]
    parts = [f"{len(study.runs)} runs", f"{study.flops:.2e} FLOPs", *over, f"{left} to do"]
    return f"study {study.name}: {', '.join(parts)}; {min(n_workers, left)} workers"


def _queue_heading(
    study: Study, states: dict[str, Snapshot], jobs: dict[str, Job], missing: list[PlannedRun]
) -> str:
    counts = Counter(state.state for name, state in states.items() if name not in jobs)
    told = [f"{counts[state]} {state}" for state in ("finished", "diverged", "failed")
            if counts[state]]  # fmt: skip
    parts = [f"{len(study.runs)} runs", f"{study.flops:.2e} FLOPs", *told]
    return (
        f"study {study.name}: {', '.join(parts)}, {len(jobs)} in the queue; "
        f"{len(missing)} submitted"
    )


@contextlib.contextmanager
def _only_sweep_in(out: Path) -> Iterator[None]:
    try:
        with locked(out / ".lock", f"pid {os.getpid()}"):
            yield
    except Held as held:
        raise UserError(f"a sweep is already at work in {out}: {held}") from None


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def define_flags() -> None:
    flags.DEFINE_string(
        "study", None, "The study: configs/studies/NAME.py, or NAME.py:ARGUMENT.", required=True
    )
    flags.DEFINE_string("out", None, "Folder of its runs; made if need be.", required=True)
    flags.DEFINE_enum("backend", "local", ["local", "slurm"], "Where the runs are executed.")
    flags.DEFINE_bool("dry_run", False, "Only print the table of runs.")
    flags.DEFINE_string("data", None, "Prepared data to use in place of every run's data.folder.")
    flags.DEFINE_float(
        "flops_per_second", None, "Training rate of one run, for the times that --dry_run tells."
    )
    flags.DEFINE_float(
        "peak_flops", None,
        "slurm: FLOP/s of one GPU by its data sheet, for the times and device-hours of --dry_run "
        "(989e12: H100, bfloat16).",
    )  # fmt: skip
    flags.DEFINE_float("share", None, "slurm: the share of --peak_flops that training reaches.")
    flags.DEFINE_integer(
        "workers", None,
        "local: runs at a time. Default: one for each core, or for each accelerator.",
    )  # fmt: skip
    flags.DEFINE_enum(
        "slurm_job", "run", ["run", "shape"],
        "slurm: a job for each run, or one for all runs that share compiled programs.",
    )  # fmt: skip
    flags.DEFINE_bool("retry_failed", False, "slurm: submit failed runs again.")
    flags.DEFINE_bool("wait", False, "slurm: stay, and show progress until the jobs have ended.")
    resources.define_flags()


def _refuse_options_of_another_backend() -> None:
    given = flags.FLAGS
    of_backend = {"local": LOCAL_OPTIONS, "slurm": (*SLURM_OPTIONS, *resources.OPTIONS)}
    for backend, names in of_backend.items():
        for name in names:
            if given[name].present and given.backend != backend:
                raise UserError(
                    f"--{name} with --backend={given.backend}; allowed with --backend={backend}"
                )


def _rate_of_a_job(study: Study, asked: Resources) -> float | None:
    """FLOP/s of a job, as far as the flags tell; of the largest where runs differ in processes."""
    given = flags.FLAGS
    if (given.peak_flops is None) != (given.share is None):
        one, other = sorted(("peak_flops", "share"), key=lambda name: given[name].value is None)
        raise UserError(f"--{one} without --{other}; allowed: both, or --flops_per_second")
    if given.peak_flops is None:
        return given.flops_per_second
    if not (given.peak_flops > 0 and 0 < given.share <= 1):
        raise UserError(
            f"--peak_flops={given.peak_flops:g} --share={given.share:g}; allowed: above 0, and a "
            "share up to 1"
        )
    return given.peak_flops * given.share * most_gpus(study, asked)


def main(argv: list[str]) -> int:
    given = flags.FLAGS
    _refuse_options_of_another_backend()
    jax.config.update("jax_platforms", "cpu")  # accelerators are for the workers
    console = Console()
    out = Path(given.out)
    study = load_study(Path(given.study), out, given.data, overrides.given(sys.argv))
    again = shlex.join(["python", "-m", "launch.sweep", *sys.argv[1:]])
    if given.backend == "local":
        if given.dry_run:
            workers = len(worker_environments(given.workers))
            _say(console, describe_plan(study, workers, True, given.flops_per_second))
            return 0
        return run_study(study, out, given.workers, console, again)
    asked = resources_from_flags()
    by_shape = given.slurm_job == "shape"
    if given.dry_run:
        _say(console, describe_plan(study, asked.at_once, False, _rate_of_a_job(study, asked)))
        if given.peak_flops is not None:
            hours = study.flops / (given.peak_flops * given.share) / 3600
            _say(console, f"{hours:,.0f} GPU-hours at {given.share:.0%} of {given.peak_flops:.3g} "
                 "FLOP/s a GPU")  # fmt: skip
        groups = group_by_shape(study.runs) if by_shape else [[run] for run in study.runs]
        _say(console, "\n" + describe_jobs(study, groups, out, asked))
        return 0
    backend = SlurmBackend(study, out, asked)
    return submit_study(
        study, out, backend, console, again,
        by_shape=by_shape, retry_failed=given.retry_failed, wait=given.wait,
    )  # fmt: skip


if __name__ == "__main__":
    define_flags()
    overrides.declare(sys.argv)
    cli.run(main)
