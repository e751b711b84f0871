"""``python -m analysis convergence``: elastic depth, and where tokens settle."""

from __future__ import annotations

import argparse

from analysis.convergence.section import elastic_depth, settling
from analysis.page.output import add_output_arguments, deliver
from analysis.tables.arguments import add_table_arguments, non_negative, read_measured
from analysis.tables.provenance import provenance
from analysis.tables.suites import parts

SCHEMA = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``convergence``."""
    parser = subparsers.add_parser(
        "convergence",
        help="loss at every depth, and the loop at which each token settles",
        description="Compare what looped_jax.evaluate --suites=depth,convergence measured on RUNS. "
        "Writes convergence.json and the figures elasticity, kl_per_loop, settling, motion and "
        "passage_RUN (SVG, PDF, PNG) to the output folder.",
    )
    add_table_arguments(parser)
    add_output_arguments(parser)
    parser.add_argument(
        "--epsilon",
        type=float,
        default=None,
        metavar="NATS",
        help="threshold at which a token counts as settled, one of those measured (default: the "
        "one that tells tokens apart best)",
    )
    parser.add_argument(
        "--passage",
        type=non_negative,
        default=0,
        metavar="N",
        help="first token of the passage that is shown (default: 0)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, compare, draw, write, print."""
    runs = read_measured(args, parts.Convergence)
    made = (elastic_depth(runs), settling(runs, args.epsilon, args.passage))
    sections = [section for section in made if section is not None]
    document = {"schema": SCHEMA, "depth": [], "saturation_hypothesis": None}
    for section in sections:
        document |= section.json()
    document["provenance"] = provenance(runs, seed=0, command=args.command).to_json()
    deliver(sections, args, "convergence.json", document)
