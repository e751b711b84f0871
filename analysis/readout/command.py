"""``python -m analysis readout``: what the loss cannot see of the recurrent state."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.page.style import save
from analysis.readout.claims import Claim, claims, final_norm, final_perplexity, radial
from analysis.readout.results import Group, group, over_seeds, readout, shapes
from analysis.readout.section import in_words, name_of, readout_figures
from analysis.tables.arguments import add_table_arguments, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.measured import require_measured
from analysis.tables.provenance import provenance

SCHEMA = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``readout``."""
    parser = subparsers.add_parser(
        "readout",
        help="scale of the state, radial gradients, quality against speed",
        description="Compare what looped_jax.evaluate --suites=readout measured on RUNS, seeds "
        "together, beside the published numbers. Writes readout.json and the figures norm_growth, "
        "radial_fraction, readout_frontier, angular_step and clamps (PNG, PDF) to the output "
        "folder.",
    )
    add_table_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, compare, draw, write, print."""
    runs = read_table(args)
    of_shapes = shapes(group([readout(each) for each in require_measured(runs, "readout")]))
    n_figures, lines, documents = 0, [], []
    for groups in of_shapes:
        found = claims(groups)
        for item in readout_figures(groups, suffix=name_of(groups) if len(of_shapes) > 1 else ""):
            save(item.figure, args.out / "figures", item.name)
            n_figures += 1
        lines += [*in_words(groups, found), *map(in_a_line, found)]
        documents.append(to_json(groups, found))
    document = {"schema": SCHEMA, "shapes": documents}
    document["provenance"] = provenance(runs, seed=0, command=args.command).to_json()
    write_text(args.out / "readout.json", dumps(document))
    print("\n".join(lines))
    print(f"\nwrote {args.out / 'readout.json'} and {n_figures} figures beside it")


def in_a_line(claim: Claim) -> str:
    here = "" if claim.here is None else f": {claim.quantity} {claim.here.text()}"
    return f"{claim.verdict:>13}  {claim.text}{here} (holds if {claim.rule})"


def to_json(groups: Sequence[Group], found: Sequence[Claim]) -> dict[str, Any]:
    """Conditions and claims of one shape; the measurements stand in the runs' summaries."""
    one = groups[0]
    return {
        "width": one.width,
        "trained_loops": one.trained_loops,
        "loops": one.loops,
        "conditions": [
            {
                "label": each.label,
                **asdict(each.condition),
                "runs": [run.run for run in each.runs],
                "seeds": [run.seed for run in each.runs],
                "final_norm": asdict(each.over_seeds(final_norm, log=True)),
                "perplexity": asdict(each.over_seeds(final_perplexity, log=True)),
                "radial_fraction": asdict(each.over_seeds(radial, log=True)),
                "angle_slope": asdict(each.over_seeds(lambda run: run.angle_slope)),
                "norm_by_loop": [
                    asdict(over_seeds([run.norm["mean"][i] for run in each.runs], log=True))
                    for i in range(1, each.loops + 1)
                ],
                "frontier": [
                    {
                        "loops": i + 1,
                        "perplexity": asdict(
                            over_seeds([run.perplexity[i] for run in each.runs], log=True)
                        ),
                        "tokens_per_second": [float(r.tokens_per_second[i]) for r in each.runs],
                        "flops_per_token": float(each.runs[0].flops[i]),
                    }
                    for i in range(each.loops)
                ],
            }
            for each in groups
        ],
        "claims": [asdict(each) for each in found],
    }
