"""``python -m analysis readout``: what the loss cannot see of the recurrent state."""

from __future__ import annotations

import argparse

from analysis.page.output import add_output_arguments, deliver
from analysis.readout.section import readout_section
from analysis.tables.arguments import add_table_arguments, read_measured
from analysis.tables.provenance import provenance
from analysis.tables.suites import parts

SCHEMA = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``readout``."""
    parser = subparsers.add_parser(
        "readout",
        help="scale of the state, radial gradients, quality against speed",
        description="Compare what looped_jax.evaluate --suites=readout measured on RUNS, seeds "
        "together, beside the published numbers. Writes readout.json and the figures norm_growth, "
        "radial_fraction, readout_frontier, angular_step and clamps (SVG, PDF, PNG) to the output "
        "folder.",
    )
    add_table_arguments(parser)
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, compare, draw, write, print."""
    runs = read_measured(args, parts.Readout)
    section = readout_section(runs)
    assert section is not None
    origin = provenance(runs, seed=0, command=args.command).to_json()
    document = {"schema": SCHEMA, **section.json(), "provenance": origin}
    deliver([section], args, "readout.json", document)
