"""``python -m analysis predict``: the loss of a model that was not trained, with its interval."""

import argparse

import numpy as np

from analysis.errors import AnalysisError
from analysis.laws.law import FittedLaw, Runs
from analysis.page.output import add_output_arguments, deliver
from analysis.page.section import Block, Items, Section, Text
from analysis.scaling.allocation import with_draws
from analysis.scaling.commands.arguments import add_fit_arguments, positive_number
from analysis.scaling.fit import fit
from analysis.scaling.jackknife import spread
from analysis.scaling.readable import readable
from analysis.tables.arguments import Command, add_table_arguments, read_table
from analysis.tables.estimate import Draws, Estimate, estimate
from analysis.tables.provenance import provenance
from analysis.tables.runs import RunTable

#: What describes a model, and how.
MODEL = {
    "n_once": "matrix entries outside the looped block, the injection counted as in RUNS",
    "n_rec": "matrix entries of the looped block, once",
    "r": "recurrences",
    "tokens": "training tokens",
}


def _add_model(parser: argparse.ArgumentParser) -> None:
    for name, text in MODEL.items():
        parser.add_argument(
            f"--{name}", type=positive_number, required=True, metavar="N", help=text
        )


def run(args: argparse.Namespace) -> None:
    """Read, fit, predict, write, print."""
    if args.r < 1:
        raise AnalysisError(f"r {args.r:g}: at least 1")
    table = read_table(args)
    fitted = fit(table, args.law, starts=args.starts, seed=args.seed)
    draws, warnings = spread(table, fitted, args.bootstrap, args.seed)
    model = {name: float(getattr(args, name)) for name in MODEL}
    loss = predict(fitted.fitted, draws, Runs.from_counts(*([x] for x in model.values())))
    warnings = [*beyond(table, model), *fitted.warnings(fitted.law.title), *warnings]
    document = {
        "law": args.law,
        "model": model,
        "loss": {"value": loss.value, "se": loss.se, "ci95": loss.ci95},
        "warnings": warnings,
        "provenance": provenance(table, seed=args.seed, command=args.command).to_json(),
    }
    blocks: list[Block] = [
        Text(f"loss {loss.text(4)} nats by the {args.law} law"),
        Text(
            "The interval is of the law's curve; a single run scatters about it: the residuals of "
            f"the {fitted.n_runs} runs have an RMSE of {fitted.rmse:.4f} nats."
        ),
    ]
    if warnings:
        blocks.append(Items([readable(line) for line in warnings], warnings=True))
    section = Section("The loss of one model", blocks, "prediction")
    deliver([section], args, "prediction.json", document)


COMMAND = Command(
    "predict",
    run,
    (add_table_arguments, add_output_arguments, _add_model, add_fit_arguments),
    help="the loss of a model that was not trained",
    description="Fit a law to RUNS and predict the loss of one model. Writes prediction.json "
    "to the output folder.",
)


def predict(fitted: FittedLaw, draws: Draws | None, model: Runs) -> Estimate:
    """The loss of one model, in nats."""
    return estimate(with_draws(fitted, draws).predict(model)[:, 0], draws)


def beyond(table: RunTable, model: dict[str, float]) -> list[str]:
    """How far a model lies outside the runs, one line for each quantity that does."""
    runs = Runs.of(table.booked)
    mine = Runs.from_counts(*model.values())
    found = []
    for name, value, those in (
        ("N", float(mine.n_effective(0.0)), runs.n_effective(0.0)),
        ("D", model["tokens"], runs.tokens),
        ("r", model["r"], runs.r),
    ):
        factor = max(value / those.max(), those.min() / value)
        if factor > 1 and not np.isclose(factor, 1):
            found.append(
                f"extrapolated: {name} = {value:.3g} is a factor {factor:.3g} beyond the runs"
            )
    return found
