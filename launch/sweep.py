"""Runs a study: a grid of runs, several at a time.

    python -m launch.sweep --study=configs/studies/quickstart.py --out=runs/quickstart --dry_run
    python -m launch.sweep --study=configs/studies/quickstart.py --out=runs/quickstart

Typed again it goes on: finished runs stay, interrupted ones resume from their last checkpoint,
failed ones are tried again. A run that diverged stays too, since it would again. Exit status 0 when
every run is finished, 1 when one is not, 130 when interrupted.
"""

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import flags
from rich.console import Console

from launch import lock
from launch.backend import Backend, Ended
from launch.display import SweepDisplay, failure_lines, is_over
from launch.local import LocalBackend
from launch.machine import this_machine, worker_environments
from launch.snapshot import Snapshot, snapshot
from launch.study import PlannedRun, Study, group_by_shape, load_study, refuse_strangers
from launch.table import planned_table, results_table
from looped_jax import cli
from looped_jax.errors import UserError
from looped_jax.files import writable_folder
from looped_jax.training.interruption import StopRequest
from looped_jax.training.progress import format_seconds

UNFINISHED_STATUS = 1
# What training reaches of a machine's matrix rate, before a run has told.
ASSUMED_SHARE = 0.2
POLL_SECONDS = 0.25


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
                    _say(console, "stopping: runs save a checkpoint (again Ctrl-C: at once)")
                    take(backend.stop())
                    return cli.INTERRUPTED_STATUS, outcomes
        except KeyboardInterrupt:  # the second Ctrl-C
            return cli.INTERRUPTED_STATUS, outcomes
    return 0, outcomes


def _report(study: Study, outcomes: dict[str, Ended], console: Console, again: str) -> int:
    """Prints the table of results and what is missing."""
    states = {run.name: snapshot(run) for run in study.runs}
    _say(console, "\n" + results_table(study.runs, states))
    missing = [run for run in study.runs if states[run.name].state != "finished"]
    if not missing:
        return 0
    _say(console, f"\n{len(missing)} of {len(study.runs)} runs did not finish:")
    for run in missing:
        ended = outcomes.get(run.name, states[run.name])
        _say(console, f"{ended.state} {run.name}: {ended.reason}")
        if ended.state == "failed":
            _say(console, failure_lines(run))
    if any(outcome.state == "failed" for outcome in outcomes.values()):
        _say(console, f"failed runs are tried again by: {again}")
    return UNFINISHED_STATUS


def dry_run(study: Study, workers: int | None, console: Console) -> None:
    """Prints the table of what a sweep would do, with the time that it would take."""
    states = {run.name: snapshot(run) for run in study.runs}
    n_workers = len(worker_environments(workers))
    rate, origin = _flops_per_second(study, states, n_workers)
    _say(console, planned_table(study.runs, states, rate))
    left = [run for run in study.runs if not is_over(states[run.name])]
    seconds = sum(run.flops * (1 - states[run.name].step / run.resolved.steps) for run in left)
    seconds /= rate * min(n_workers, max(1, len(left)))
    _say(
        console,
        f"\n{study.name}: {len(left)} of {len(study.runs)} runs to do, {study.flops:.2e} FLOPs in "
        f"all; about {format_seconds(seconds)} for {n_workers} workers at {rate:.2e} FLOP/s each "
        f"({origin})",
    )


def _flops_per_second(
    study: Study, states: dict[str, Snapshot], n_workers: int
) -> tuple[float, str]:
    """The training rate of one worker, and where the number comes from."""
    finished = [run for run in study.runs if states[run.name].state == "finished"]
    if finished:
        seconds = sum(states[run.name].seconds or 0.0 for run in finished)
        return sum(run.flops for run in finished) / seconds, "the rate of the finished runs"
    machine = this_machine()
    rate = machine.flops_per_second * machine.devices
    if machine.platform == "cpu":  # simulated devices are no more than its cores
        rate = machine.flops_per_second
    return ASSUMED_SHARE * rate / n_workers, (
        f"assumed: {ASSUMED_SHARE:.0%} of this machine's matrix rate, {rate:.2e} FLOP/s"
    )


def _heading(study: Study, states: dict[str, Snapshot], n_workers: int) -> str:
    counts = Counter(state.state for state in states.values())
    over = [f"{counts[state]} {state}" for state in ("finished", "diverged") if counts[state]]
    left = len(study.runs) - counts["finished"] - counts["diverged"]
    parts = [f"{len(study.runs)} runs", f"{study.flops:.2e} FLOPs", *over, f"{left} to do"]
    return f"study {study.name}: {', '.join(parts)}; {min(n_workers, left)} workers"


@contextlib.contextmanager
def _only_sweep_in(out: Path) -> Iterator[None]:
    try:
        with lock.locked(out / ".lock"):
            yield
    except lock.Busy as busy:
        raise UserError(f"a sweep is already at work in {out}: {busy}") from None


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def define_flags() -> None:
    flags.DEFINE_string("study", None, "The study: configs/studies/NAME.py.", required=True)
    flags.DEFINE_string("out", None, "Folder of its runs; made if need be.", required=True)
    flags.DEFINE_enum("backend", "local", ["local"], "Where the runs are executed.")
    flags.DEFINE_integer(
        "workers", None, "Runs at a time. Default: one for each core, or for each accelerator."
    )
    flags.DEFINE_bool("dry_run", False, "Only print the table of runs.")
    flags.DEFINE_string("data", None, "Prepared data to use in place of every run's data.folder.")


def main(argv: list[str]) -> int:
    given = flags.FLAGS
    jax.config.update("jax_platforms", "cpu")  # accelerators are for the workers
    console = Console()
    out = Path(given.out)
    study = load_study(Path(given.study), out, given.data)
    if given.dry_run:
        dry_run(study, given.workers, console)
        return 0
    again = shlex.join(["python", "-m", "launch.sweep", *sys.argv[1:]])
    return run_study(study, out, given.workers, console, again)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
