"""``python -m analysis fit``: fit a scaling law to a study and say how sure it is."""

import argparse

from analysis.page.characters import csv
from analysis.page.output import add_output_arguments, deliver
from analysis.scaling.commands.arguments import add_fit_arguments, add_unit_argument
from analysis.scaling.isoflop import isoflop_curves
from analysis.scaling.show.answer_sections import Scaling, answer, warnings, which_law
from analysis.scaling.show.fit_json import to_json
from analysis.scaling.show.fit_sections import law, runs, trust
from analysis.scaling.study import Settings, fit_study
from analysis.tables.arguments import (
    Command,
    add_table_arguments,
    positive,
    read_table,
)
from analysis.tables.files import write_text
from analysis.tables.provenance import provenance


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--phi", type=_phi, default=None, metavar="FREE|VALUE", help="hold φ (default: free)"
    )
    parser.add_argument(
        "--holdout",
        type=positive,
        nargs="?",
        const=1,
        default=0,
        metavar="N",
        help="fit without the N (1) largest budgets and predict them",
    )


def run(args: argparse.Namespace) -> None:
    """Read, fit, write, print."""
    table = read_table(args)
    settings = Settings(
        law=args.law,
        phi=args.phi,
        starts=args.starts,
        resamples=args.bootstrap,
        unit=args.unit,
        holdout=args.holdout,
        seed=args.seed,
    )
    study = fit_study(table, settings, show_progress=True)
    origin = provenance(table, seed=args.seed, command=args.command)
    if study.bootstrap is not None:
        write_text(args.out / "bootstrap.csv", csv(study.bootstrap.estimates))
    write_text(args.out / "runs.csv", csv(study.predictions()))
    sections = [
        answer(Scaling(study, isoflop_curves(study.table.runs), [], None, None)),
        law(study),
        which_law(study),
        trust(study),
        runs(study),
        warnings(study.warnings),
    ]
    deliver(sections, args, "fit.json", to_json(study, origin), figures=False)


COMMAND = Command(
    "fit",
    run,
    (add_table_arguments, add_output_arguments, _add_options, add_fit_arguments, add_unit_argument),
    help="fit a scaling law, with intervals and checks",
    description="Fit a scaling law to RUNS. Writes fit.json, runs.csv (what the law says of "
    "each run) and bootstrap.csv (every resample) to the output folder.",
)


def _phi(text: str) -> float | None:
    if text.lower() == "free":
        return None
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither FREE nor a number") from None
