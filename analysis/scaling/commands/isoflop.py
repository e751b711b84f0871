"""``python -m analysis isoflop``: parabolas per (budget, r), their vertices and exponents."""

import argparse

from analysis.page.output import add_output_arguments, deliver
from analysis.page.section import Block, Section, Text
from analysis.scaling.isoflop import exponents, isoflop_curves
from analysis.scaling.show.curve_json import isoflop_json
from analysis.scaling.show.curve_sections import exponent_table, isoflop, isoflop_figure
from analysis.tables.arguments import Command, add_table_arguments, read_table, warn
from analysis.tables.provenance import provenance


def run(args: argparse.Namespace) -> None:
    """Read, fit, draw, write, print."""
    table = read_table(args)
    warn(table)
    curves = isoflop_curves(table.runs)
    growth = exponents(curves)
    refused = [Text(f"No exponent: {each.refused}.") for each in growth if each.refused]
    grown: list[Block] = [isoflop_figure(curves), exponent_table(None, growth), *refused]
    sections = [isoflop(curves, in_terminal=True), Section("Exponents", grown, "exponents")]
    origin = provenance(table, seed=0, command=args.command)
    deliver(sections, args, "isoflop.json", isoflop_json(curves, growth, origin))


COMMAND = Command(
    "isoflop",
    run,
    (add_table_arguments, add_output_arguments),
    help="iso-FLOP parabolas and the growth of their vertices",
    description="Fit a parabola in log N to the runs of each budget and r. Writes isoflop.json "
    "and the figures isoflop and isoflop_panels (SVG, PDF, PNG) to the output folder.",
)
