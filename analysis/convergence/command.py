"""``python -m analysis convergence``: elastic depth, and where tokens settle."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.convergence import figures
from analysis.convergence.passage import heat_map, passage
from analysis.convergence.results import (
    Convergence,
    Elasticity,
    SaturationTest,
    convergence,
    elasticity,
    saturation_test,
    usual_epsilon,
)
from analysis.convergence.section import decay, hypothesis, verdict
from analysis.page.style import save
from analysis.tables.arguments import add_table_arguments, non_negative, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.measured import measured, require_measured
from analysis.tables.provenance import provenance

SCHEMA = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``convergence``."""
    parser = subparsers.add_parser(
        "convergence",
        help="loss at every depth, and the loop at which each token settles",
        description="Compare what looped_jax.evaluate --suites=depth,convergence measured on RUNS. "
        "Writes convergence.json and the figures elasticity, kl_per_loop, settling, motion and "
        "passage_RUN (PNG, PDF) to the output folder.",
    )
    add_table_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
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
    runs = read_table(args)
    models = [convergence(each) for each in require_measured(runs, "convergence")]
    elastic = [elasticity(each) for each in measured(runs, "depth")]
    epsilon = usual_epsilon(models) if args.epsilon is None else args.epsilon
    lines = decay(models, epsilon)
    drawn = {
        "kl_per_loop": figures.kl_per_loop(models),
        "settling": figures.settling(models, epsilon),
        "motion": figures.motion(models),
        **{f"passage_{m.run}": heat_map(passage(m, epsilon, args.passage)) for m in models},
    }
    test = saturation_test(elastic)
    if elastic:
        drawn["elasticity"] = figures.elasticity(elastic)
        lines = [*map(verdict, elastic), *([hypothesis(test)] if test else []), *lines]
    document = to_json(models, elastic, test, epsilon)
    document["provenance"] = provenance(runs, seed=0, command=args.command).to_json()
    for name, figure in drawn.items():
        save(figure, args.out / "figures", name)
    write_text(args.out / "convergence.json", dumps(document))
    print("\n".join(lines))
    print(f"\nwrote {args.out / 'convergence.json'} and {len(drawn)} figures beside it")


def to_json(
    models: Sequence[Convergence],
    elastic: Sequence[Elasticity],
    test: SaturationTest | None,
    epsilon: float,
) -> dict[str, Any]:
    """What ``convergence.json`` holds; the measurements themselves stand in the runs' summaries."""
    return {
        "schema": SCHEMA,
        "epsilon": epsilon,
        "depth": [
            {
                "run": model.run,
                "sampled": model.sampled,
                "training_mean": model.mean,
                "measurably_worse_than_mean_until": model.improves_until,
                "monotone_to_mean": model.is_monotone_to_mean,
                "saturation_depth": asdict(model.saturation),
                "saturation_over_mean": asdict(model.ratio),
                "deepest": {
                    "depth": model.at(float(model.depths[-1]))[0],
                    "difference": asdict(model.at(float(model.depths[-1]))[1]),
                },
            }
            for model in elastic
        ],
        "saturation_hypothesis": None
        if test is None
        else {
            "runs": test.runs,
            "slope": None if test.slope is None else asdict(test.slope),
            "holds": test.holds,
        },
        "convergence": [
            {
                "run": model.run,
                "training_mean": model.mean,
                "recurrences": model.recurrences,
                "decades_per_loop": model.decades_per_loop,
                "median": asdict(model.at(epsilon).median),
                "tail_at_mean": asdict(model.at(epsilon).tail_at_mean),
                "by_type": {
                    name: {
                        "tokens": part.tokens,
                        "median": asdict(part.median),
                        "tail_at_mean": asdict(part.tail_at_mean),
                    }
                    for name, part in model.at(epsilon).groups["type"].items()
                },
            }
            for model in models
        ],
    }
