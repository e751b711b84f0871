"""A study as a table of text: what is planned, or what came out."""

from collections.abc import Mapping, Sequence

from launch.snapshot import Snapshot
from launch.study import PlannedRun
from looped_jax.progress import format_seconds

_ABSENT = "–"


def planned_table(
    runs: Sequence[PlannedRun], states: Mapping[str, Snapshot], flops_per_second: float | None
) -> str:
    """What each run costs, and how far it is.

    Args:
      states: by name.
      flops_per_second: of one worker; None if unknown.
    """
    header = [*_PLAN_HEADER, "estimated time", "state"]

    def time(run: PlannedRun) -> str:
        return _ABSENT if flops_per_second is None else format_seconds(run.flops / flops_per_second)

    rows = [[*_plan_cells(run), time(run), _state(states[run.name])] for run in runs]
    return text_table(header, rows)


def results_table(
    runs: Sequence[PlannedRun],
    states: Mapping[str, Snapshot],
    jobs: Mapping[str, object] | None = None,
) -> str:
    """What came out of each run; the loss of an unfinished one is no result and left out.

    Args:
      states: by name.
      jobs: by name, what a scheduler has in its queue; None if there is no scheduler.
    """
    header = [*_PLAN_HEADER, "loss (nats)", "time", "state"]
    if jobs is not None:
        header.append("job")
    rows = []
    for run in runs:
        state = states[run.name]
        finished = state.state == "finished" and state.loss is not None
        loss = f"{state.loss:.4f}" if finished else _ABSENT
        time = _ABSENT if state.seconds is None else format_seconds(state.seconds)
        row = [*_plan_cells(run), loss, time, _state(state)]
        rows.append(row if jobs is None else [*row, str(jobs.get(run.name, _ABSENT))])
    return text_table(header, rows)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart; the first and the last aligned left, numbers between right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    aligned = []
    for line in lines:
        first, *middle, last = (
            cell.ljust(width) if column in (0, len(header) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        aligned.append("  ".join([first, *middle, last]).rstrip())
    return "\n".join(aligned)


_PLAN_HEADER = ("run", "r", "width", "parameters", "tokens", "steps", "FLOPs")


def _plan_cells(run: PlannedRun) -> list[str]:
    model = run.resolved.model
    return [
        run.name, str(model.recurrences), str(model.width), f"{run.parameters:,}",
        f"{run.tokens:,}", f"{run.resolved.steps:,}", f"{run.flops:.2e}",
    ]  # fmt: skip


def _state(state: Snapshot) -> str:
    if state.state is None:
        return "new"
    if state.state == "finished":
        return "finished"
    # After a kill the folder still says "running"; how far it came is what can be told.
    word = "started" if state.state == "running" else state.state
    return f"{word}, step {state.step:,}"
