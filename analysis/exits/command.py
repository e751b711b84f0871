"""``python -m analysis exits``: what exit policies save and lose."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.estimate import Estimate
from analysis.exits.results import Exits, exits, verdict
from analysis.exits.section import exit_figures, in_words
from analysis.page.style import save
from analysis.tables.arguments import add_table_arguments, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.measured import require_measured
from analysis.tables.provenance import provenance

SCHEMA = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``exits``."""
    parser = subparsers.add_parser(
        "exits",
        help="exit policies: quality against loops and against compute",
        description="Compare the exit policies that looped_jax.evaluate --suites=exits measured on "
        "RUNS. Writes exits.json and the figures frontier_RUN and carries_RUN (PNG, PDF) to the "
        "output folder.",
    )
    add_table_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, compare, draw, write, print."""
    runs = read_table(args)
    models = [exits(each) for each in require_measured(runs, "exits")]
    n_figures = 0
    for model in models:
        for item in exit_figures(model):
            save(item.figure, args.out / "figures", item.name)
            n_figures += 1
    document: dict[str, Any] = {"schema": SCHEMA, "runs": [to_json(model) for model in models]}
    document["provenance"] = provenance(runs, seed=0, command=args.command).to_json()
    write_text(args.out / "exits.json", dumps(document))
    print("\n".join(sentence for model in models for sentence in in_words(model)))
    print(f"\nwrote {args.out / 'exits.json'} and {n_figures} figures beside it")


def to_json(model: Exits) -> dict[str, Any]:
    """A run's comparisons; its points stand in its summary.json."""
    return {
        "run": model.run,
        "training_mean": model.mean,
        "recurrences": model.recurrences,
        "carry": model.shown_carry,
        "test_over_loop": {
            name: flops / model.costs["recurrence"] for name, flops in model.tests.items()
        },
        "against_uniform": [
            {
                "policy": policy,
                "carry": carry,
                "equal": cost,
                "better": found.better,
                "worse": found.worse,
                "compared": found.compared,
                "best": None
                if found.best is None
                else {
                    "threshold": found.best.threshold,
                    "mean_loops": found.best.mean_loops.value,
                    "difference": asdict(getattr(found.best, f"against_uniform_{cost}")),
                },
            }
            for carry in model.carries
            for policy in model.policies
            for cost in ("loops", "flops")
            for found in [verdict(model, policy, carry, cost)]
        ],
        "at_equal_quality": [
            {
                "policy": each.policy,
                "carry": each.carry,
                "loops_over_uniform": _or_null(each.loops_over_uniform),
                "flops_over_uniform": _or_null(each.flops_over_uniform),
                "share_reached": each.share_reached,
            }
            for each in model.equal_quality
        ],
        "probe_area_under_roc": model.probe_quality,
    }


def _or_null(value: Estimate) -> dict[str, Any] | None:
    return None if value.ci95 is None else asdict(value)
