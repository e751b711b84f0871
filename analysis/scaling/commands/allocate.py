"""``python -m analysis allocate``: compute-optimal models under the fitted law, and their cost."""

import argparse

import numpy as np

from analysis.page.output import add_output_arguments, deliver
from analysis.page.section import Items, Section
from analysis.scaling.allocation import allocate
from analysis.scaling.commands.arguments import add_fit_arguments, positive_number
from analysis.scaling.fit import fit
from analysis.scaling.flops import architectures
from analysis.scaling.isoflop import exponents, isoflop_curves
from analysis.scaling.jackknife import spread
from analysis.scaling.readable import readable
from analysis.scaling.show.curve_json import allocation_json
from analysis.scaling.show.curve_sections import allocation, price, sizes_table
from analysis.tables.arguments import (
    Command,
    add_table_arguments,
    read_table,
    warn,
)
from analysis.tables.provenance import provenance


def _add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget",
        type=positive_number,
        nargs="+",
        metavar="FLOPS",
        help="training FLOPs to spend (default: the budgets of RUNS)",
    )


def run(args: argparse.Namespace) -> None:
    """Read, fit, minimise, draw, write, print."""
    table = read_table(args)
    warn(table)
    architectures(table.runs)  # refuses what has no exact FLOPs function, before any fit
    found = fit(table, args.law, starts=args.starts, seed=args.seed)
    draws, doubts = spread(table, found, args.bootstrap, args.seed)
    budgets = None if args.budget is None else np.array(args.budget)
    result = allocate(table, found.fitted, draws, budgets)
    curves = isoflop_curves(table.runs)
    sizes = [sizes_table(table.runs["r"], None, result.sizes)] if result.sizes else []
    doubts = [*found.warnings(found.law.title), *doubts]
    items = [Items([readable(line) for line in doubts], warnings=True)] if doubts else []
    sections = [
        price(result, curves, found.law.name, in_terminal=True),
        allocation(result, None, curves, exponents(curves)),
        Section("Sizes", [*sizes, *items], "sizes"),
    ]
    origin = provenance(table, seed=args.seed, command=args.command)
    deliver(sections, args, "allocation.json", allocation_json(result, origin))


COMMAND = Command(
    "allocate",
    run,
    (add_table_arguments, add_output_arguments, _add_budget, add_fit_arguments),
    help="compute-optimal width, tokens and loss under the fitted law",
    description="Fit a law and minimise it at every budget under the exact FLOPs per "
    "token. Writes allocation.json and figures (SVG, PDF, PNG) to the output folder.",
)
