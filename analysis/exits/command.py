"""``python -m analysis exits``: what exit policies save and lose."""

from __future__ import annotations

import argparse

from analysis.exits.section import exits_section
from analysis.page.output import add_output_arguments, deliver
from analysis.tables.arguments import add_table_arguments, read_measured
from analysis.tables.provenance import provenance
from analysis.tables.suites import parts

SCHEMA = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``exits``."""
    parser = subparsers.add_parser(
        "exits",
        help="exit policies: quality against loops and against compute",
        description="Compare the exit policies that looped_jax.evaluate --suites=exits measured on "
        "RUNS. Writes exits.json and the figures frontier_RUN and carries_RUN (SVG, PDF, PNG) to "
        "the output folder.",
    )
    add_table_arguments(parser)
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, compare, draw, write, print."""
    runs = read_measured(args, parts.Exits)
    section = exits_section(runs)
    assert section is not None
    origin = provenance(runs, seed=0, command=args.command).to_json()
    document = {"schema": SCHEMA, **section.json(), "provenance": origin}
    deliver([section], args, "exits.json", document)
