"""``python -m analysis rates``: loss against learning rate, and what the transferred optimum costs.

Rates stand at the reference of the transfer rules (width, tokens, batch), so that a rule that
holds puts every optimum at one rate. A cell is one injection, r, width and number of tokens; its
regret is its loss at the reference's best rate minus its lowest loss (arXiv:2604.21106, D).
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from analysis.errors import InputError
from analysis.page.chart import Curve, Panel, chart
from analysis.page.numbers import compact
from analysis.page.output import add_output_arguments, deliver
from analysis.page.section import PageFigure, Section
from analysis.page.style import PAGE, RecurrenceStyle
from analysis.page.table import Column, Table
from analysis.tables.arguments import Command
from analysis.tables.estimate import Estimate
from analysis.tables.files import refuse_unwritable
from analysis.training.results import TrainedRun, find_runs, paired_difference

RATE = "optimizer.rates.matrix"


class Cell(NamedTuple):
    """What runs of one cell have in common; all but the rate and the seed."""

    injection: str
    r: int
    width: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.injection} r = {self.r}, width {self.width}, {compact(self.tokens)} tokens"


@dataclass(frozen=True)
class Sweep:
    """The runs of a cell by rate, ascending, one or more seeds each."""

    cell: Cell
    runs: dict[float, list[TrainedRun]]

    @property
    def losses(self) -> dict[float, float]:
        """Held-out loss by rate, the mean over seeds."""
        of = lambda run: float((run.summary or {})["loss"])
        return {rate: sum(map(of, runs)) / len(runs) for rate, runs in self.runs.items()}

    @property
    def best(self) -> float:
        losses = self.losses
        return min(losses, key=losses.__getitem__)

    def regret(self, rate: float) -> Estimate | float | None:
        """Loss at a rate minus the lowest, with an interval where one run stands on each side."""
        if rate not in self.runs:
            return None
        at, best = self.runs[rate], self.runs[self.best]
        if len(at) == len(best) == 1 and at != best:
            paired = paired_difference(best[0], at[0])
            if isinstance(paired, Estimate):
                return paired
        return self.losses[rate] - self.losses[self.best]


def sweeps(runs: Sequence[TrainedRun]) -> list[Sweep]:
    """The cells that finished runs fill with two rates or more.

    Raises:
        InputError: there is none.
    """
    cells: dict[Cell, dict[float, list[TrainedRun]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.summary is not None and RATE in run.config:
            config = run.config
            cell = Cell(
                config["model.injection"], config["model.recurrences"], config["model.width"],
                int(run.summary["tokens"]),
            )  # fmt: skip
            cells[cell][float(config[RATE])].append(run)
    found = [
        Sweep(cell, dict(sorted(by_rate.items())))
        for cell, by_rate in sorted(cells.items())
        if len(by_rate) > 1
    ]
    if not found:
        raise InputError(f"no two finished runs that differ in {RATE} alone")
    return found


def reference(sweep: Sweep, all_of_them: Sequence[Sweep]) -> Sweep:
    """The cell nearest to the reference of a cell's transfer rules, among those of its kind."""
    config = next(iter(sweep.runs.values()))[0].config
    d_ref, tokens_ref = (config[f"optimizer.transfer.{key}"] for key in ("d_ref", "tokens_ref"))
    alike = [each for each in all_of_them if each.cell[:2] == sweep.cell[:2]]
    return min(alike, key=lambda s: (abs(s.cell.width - d_ref), abs(s.cell.tokens - tokens_ref)))


def section(found: Sequence[Sweep]) -> Section:
    """Curves, and a row a cell."""

    def row(sweep: Sweep) -> dict[str, Any]:
        transferred = reference(sweep, found).best
        return {
            "cell": str(sweep.cell), "rates": len(sweep.runs), "best_rate": sweep.best,
            "loss": sweep.losses[sweep.best], "transferred_rate": transferred,
            "regret": sweep.regret(transferred),
        }  # fmt: skip

    table = Table(
        "rates",
        "Rates at the reference. Regret: loss at the best rate of the cell nearest to the "
        "reference minus the lowest loss, with its 95 % interval over held-out windows.",
        (
            Column("cell", "cell"),
            Column("rates", "rates", "d"),
            Column("best_rate", "best rate", ".4g"),
            Column("loss", "its loss (nats)", ".4f"),
            Column("transferred_rate", "transferred", ".4g"),
            Column("regret", "regret (nats)", ".4f"),
        ),
        [row(sweep) for sweep in found],
    )
    figure = PageFigure(
        "loss_by_rate", partial(draw, found), "Held-out loss against the rate at the reference.",
        f"Line chart of held-out loss against learning rate for {len(found)} cells.",
    )  # fmt: skip
    return Section("Learning rates", [table, figure], "rates", {"cells": table})


def draw(found: Sequence[Sweep], width: float = PAGE) -> Figure:
    """Loss against rate, a curve a cell."""
    style = RecurrenceStyle(range(len(found)))
    curves = [
        Curve(list(s.losses), list(s.losses.values()), style.line(i) | {"marker": "o"}, str(s.cell))
        for i, s in enumerate(found)
    ]
    panel = Panel(curves, "rate of the matrices at the reference", "held-out loss (nats)", log="x")
    return chart([panel], width, columns=1, height=3.5)


def _add_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, metavar="RUNS", help="folder of run folders")


def run(args: argparse.Namespace) -> None:
    """Read, compare, draw, write, print."""
    refuse_unwritable(args.out)
    found = section(sweeps(find_runs([args.study])))
    deliver([found], args, "rates.json", {"schema": 1, "command": args.command} | found.json())


COMMAND = Command(
    "rates",
    run,
    (_add_study, add_output_arguments),
    help="loss against learning rate, and the regret of the transferred optimum",
    description="Group the finished runs in RUNS by injection, r, width and tokens, and say what "
    "the best rate of the reference costs in every group. Writes rates.json and the figure "
    "loss_by_rate (SVG, PDF, PNG).",
)
