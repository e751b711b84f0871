"""What a sweep would do, and how long it would take."""

from collections.abc import Mapping, Sequence

from launch.machine import this_machine
from launch.shown.display import is_over
from launch.shown.table import planned_table
from launch.snapshot import Snapshot, snapshot
from launch.study import PlannedRun, Study
from looped_jax.progress import format_seconds

# What training reaches of a machine's matrix rate, before a run has told.
ASSUMED_SHARE = 0.2


def describe_plan(study: Study, at_once: int, local: bool, flops_per_second: float | None) -> str:
    """The table of runs, with a line about the whole.

    Args:
      at_once: how many runs can go on at once.
      local: whether they would share this machine.
      flops_per_second: training rate of one run; None for that of the finished runs or, if there
        are none, a guess from this machine. What other machines reach is not guessed.
    """
    states = {run.name: snapshot(run) for run in study.runs}
    rate, origin = flops_per_second, "given"
    if rate is None:
        rate, origin = _rate(study, states, at_once if local else None)
    left = [run for run in study.runs if not is_over(states[run.name])]
    whole = (
        f"{planned_table(study.runs, states, rate)}\n\n"
        f"{study.name}: {len(left)} of {len(study.runs)} runs to do, {study.flops:.2e} FLOPs in all"
    )
    if rate is None:
        return f"{whole}; {origin}"
    seconds = _seconds_left(left, states, rate, at_once)
    workers = f"{at_once} worker{'s' if at_once > 1 else ''}" if local else f"up to {at_once} jobs"
    return (
        f"{whole}; about {format_seconds(seconds)} for {workers} at {rate:.2e} FLOP/s each "
        f"({origin})"
    )


def _seconds_left(
    left: Sequence[PlannedRun], states: Mapping[str, Snapshot], rate: float, at_once: int
) -> float:
    """Until the last run ends, if no run waits for anything but a free place."""
    each = [run.flops * (1 - states[run.name].step / run.resolved.steps) / rate for run in left]
    return max(sum(each) / at_once, max(each, default=0.0))


def _rate(
    study: Study, states: Mapping[str, Snapshot], sharing: int | None
) -> tuple[float | None, str]:
    """The training rate of one run (FLOP/s), and where the number comes from.

    Args:
      sharing: runs that share this machine; None if they run elsewhere.
    """
    finished = [run for run in study.runs if states[run.name].state == "finished"]
    if finished:
        seconds = sum(states[run.name].seconds or 0.0 for run in finished)
        return sum(run.flops for run in finished) / seconds, "the rate of the finished runs"
    if sharing is None:
        return None, "no run has told how long they take: --peak_flops and --share estimate it"
    machine = this_machine()
    whole = machine.flops_per_second
    if machine.platform != "cpu":  # simulated devices of a CPU are no more than its cores
        whole *= machine.devices
    return ASSUMED_SHARE * whole / sharing, (
        f"assumed: {ASSUMED_SHARE:.0%} of this machine's matrix rate, {whole:.2e} FLOP/s; "
        "--flops_per_second tells better"
    )
