"""How runs were trained, and how two of them differ: in words, tables and figures."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from analysis.errors import InputError
from analysis.page.numbers import compact, listed, scientific
from analysis.page.section import Block, Items, PageFigure, Section
from analysis.page.table import Column, Table
from analysis.tables.estimate import Estimate
from analysis.tables.runs import RunTable
from analysis.training import figures
from analysis.training.results import TrainedRun, differing_keys, find_runs, paired_difference


def training(runs: RunTable) -> Section | None:
    """Training curves of the runs of a folder; None of a CSV or where none were kept."""
    if not runs.source.is_dir():
        return None
    try:
        found = find_runs([runs.source])
    except InputError:
        return None
    wanted = set(runs.runs["run"])
    found = [run for run in found if run.name in wanted]
    if not found:
        return None
    table = [run_table(found)] if len(found) == 1 else []
    return Section("Training", [*table, curves_figure(found)], anchor="training")


def beside(runs: Sequence[TrainedRun]) -> list[Section]:
    """Runs beside each other: losses, their paired differences, configs that differ, curves."""
    first = runs[0]
    differences = {run.name: paired_difference(first, run) for run in runs[1:]}
    losses = difference_table(first, differences)
    reasons = [reason for reason in differences.values() if isinstance(reason, str)]
    keys = differing_keys(runs)
    config = config_table(runs, keys)
    content: list[Block] = [
        *([losses] if losses.rows else []),
        *([Items(reasons)] if reasons else []),
        run_table(runs),
    ]
    differing = [config] if keys else ["Their configs are the same."]
    return [
        Section("Held-out loss", content, "loss", {"runs": run_table(runs), "differences": losses}),
        Section("What differs in the configs", differing, "config", {"config": config}),
        Section("Training curves", [curves_figure(runs)], "curves"),
    ]


def curves_figure(runs: Sequence[TrainedRun]) -> PageFigure:
    """Loss over training."""
    return PageFigure(
        "training_curves",
        partial(figures.curves, runs),
        "Loss over training, averaged over evenly spaced parts of a logarithmic axis. Dots: the "
        "held-out loss at the end. Against FLOPs only runs that have ended.",
        f"Two line charts of {listed([run.name for run in runs])}: training loss against tokens "
        f"and against FLOPs, ending at {min(run.curve()[1][-1] for run in runs):.3f} nats in the "
        "best run.",
    )


def run_table(runs: Sequence[TrainedRun]) -> Table:
    """What each run was and came to."""

    def row(run: TrainedRun) -> dict[str, Any]:
        summary = run.summary or {}
        loss, error = summary.get("loss"), summary.get("loss_standard_error")
        return {
            "run": run.name,
            "tokens": float(run.tokens[-1]),
            "flops": summary.get("train_flops"),
            "parameters": summary.get("n_total"),
            "loss": loss,
            "standard_error": error,
            "bits_per_byte": summary.get("bits_per_byte"),
            "train_loss": float(run.curve()[1][-1]),
        }

    return Table(
        "trained_runs",
        "Losses in nats per token; ± is one standard error over windows of the held-out text.",
        (
            Column("run", "run"),
            Column("tokens", "tokens", compact),
            Column("flops", "FLOPs", scientific),
            Column("parameters", "parameters", compact),
            Column("loss", "held-out loss", ".4f"),
            Column("standard_error", "±", ".4f"),
            Column("bits_per_byte", "bits / byte", ".4f"),
            Column("train_loss", "training loss", ".4f"),
        ),
        [row(run) for run in runs],
    )


def difference_table(first: TrainedRun, differences: dict[str, Estimate | str]) -> Table:
    """Held-out losses minus that of the first run, window by window."""
    rows = [
        {"run": name, "difference": found, "verdict": _verdict(found)}
        for name, found in differences.items()
        if isinstance(found, Estimate)
    ]
    return Table(
        "paired_differences",
        f"Held-out loss minus that of {first.name}, on the same windows, with its 95 % interval.",
        (
            Column("run", "run"),
            Column("difference", "difference (nats)", "+.4f"),
            Column("verdict", ""),
        ),
        rows,
    )


def _verdict(difference: Estimate) -> str:
    assert difference.ci95 is not None
    low, high = difference.ci95
    return "better" if high < 0 else "worse" if low > 0 else "cannot be told apart"


def config_table(runs: Sequence[TrainedRun], keys: Sequence[str]) -> Table:
    """The config keys that differ, a column a run."""
    return Table(
        "config_differences",
        "",
        (Column("key", "key"), *(Column(f"run_{i}", run.name) for i, run in enumerate(runs))),
        [
            {"key": key, **{f"run_{i}": _value(run, key) for i, run in enumerate(runs)}}
            for key in keys
        ],
    )


def _value(run: TrainedRun, key: str) -> str | None:
    return str(run.config[key]) if key in run.config else None
