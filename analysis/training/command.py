"""``python -m analysis runs``: two or more runs beside each other."""

import argparse
from pathlib import Path

from analysis.page.output import add_output_arguments, deliver
from analysis.tables.arguments import Command
from analysis.tables.files import refuse_unwritable
from analysis.training.results import find_runs
from analysis.training.section import beside

SCHEMA = 1


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run folder, or folder of run folders"
    )


def run(args: argparse.Namespace) -> None:
    """Read, compare, draw, write, print."""
    refuse_unwritable(args.out)
    sections = beside(find_runs(args.runs))
    document = {"schema": SCHEMA, "command": args.command}
    for section in sections:
        document |= section.json()
    deliver(sections, args, "comparison_of_runs.json", document)


COMMAND = Command(
    "runs",
    run,
    (_add_runs, add_output_arguments),
    help="runs beside each other: curves, configs, paired loss differences",
    description="Compare the runs in the folders RUN with the first of them: held-out loss "
    "window by window, config keys that differ, training curves against tokens and FLOPs. "
    "Writes comparison_of_runs.json and the figure training_curves (SVG, PDF, PNG).",
)
