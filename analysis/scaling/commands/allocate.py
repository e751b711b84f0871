"""``python -m analysis allocate``: compute-optimal models under the fitted law, and their cost."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis.estimate import Estimate
from analysis.page import style as plots
from analysis.page.style import compact
from analysis.scaling.allocation import Allocation, allocate
from analysis.scaling.bootstrap import bootstrap_fit
from analysis.scaling.commands.arguments import add_fit_arguments
from analysis.scaling.fit import fit
from analysis.scaling.isoflop import isoflop_curves
from analysis.scaling.show import curve_figures as figures
from analysis.scaling.show.curve_json import allocation_json
from analysis.scaling.show.text import table_text
from analysis.tables.arguments import add_seed_argument, add_table_arguments, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.flops import architectures
from analysis.tables.provenance import provenance


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``allocate``."""
    parser = subparsers.add_parser(
        "allocate",
        help="compute-optimal width, tokens and loss under the fitted law",
        description="Fit a law and minimise it at every budget under the exact FLOPs per "
        "token. Writes allocation.json and figures (PNG, PDF) to the output folder.",
    )
    add_table_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    add_fit_arguments(parser)
    add_seed_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, fit, minimise, draw, write, print."""
    table = read_table(args)
    architectures(table.runs)  # refuses what has no exact FLOPs function, before any fit
    found = fit(table, args.law, starts=args.starts, seed=args.seed)
    resampled = None
    if args.bootstrap:
        resampled = bootstrap_fit(table, found, resamples=args.bootstrap, seed=args.seed)
    result = allocate(table, found.fitted, None if resampled is None else resampled.accepted)
    curves = isoflop_curves(table.runs)
    drawn = {
        "optimum": figures.optimum(result.optima, curves),
        "tokens_per_parameter": figures.tokens_per_parameter(result.optima, curves),
        "frontier": figures.frontier(result.optima, curves),
    }
    if result.gaps:
        drawn["frontier_gap"] = figures.frontier_gap(result.gaps, curves)
    for name, figure in drawn.items():
        plots.save(figure, args.out / "figures", name)
    document = allocation_json(result, provenance(table, seed=args.seed, command=args.command))
    write_text(args.out / "allocation.json", dumps(document))
    print("\n".join(_lines(result)))
    for warning in [
        *found.warnings(found.law.title),
        *(resampled.warnings() if resampled else []),
    ]:
        print(f"warning: {warning}")
    print(f"\nwrote {args.out / 'allocation.json'}")


def _lines(result: Allocation) -> list[str]:
    gaps = {gap.r: gap for gap in result.gaps_at_budgets}
    rows: list[tuple[str, ...]] = []
    for o in result.at_budgets:
        for i, budget in enumerate(o.budgets):
            gap = gaps.get(o.r)
            ends = None
            if gap is not None and gap.ci95 is not None:
                ends = (float(gap.ci95[0][i]), float(gap.ci95[1][i]))
            rows.append(
                (
                    f"{budget:.3g}",
                    f"{o.r:g}",
                    f"{o.d_model[i]:.0f}{' *' if o.extrapolated[i] else ''}",
                    compact(o.n_params[i]),
                    compact(o.tokens[i]),
                    f"{o.tokens[i] / o.n_params[i]:.1f}",
                    f"{o.loss[i]:.4f}",
                    "" if gap is None else Estimate(float(gap.gap[i]), None, ends).text(),
                )
            )
    columns = ("budget", "r", "width", "N*", "D*", "D*/N*", "L* (nats)", "L* − L*(r = 1)")
    lines = ["minimum of the fitted law", *table_text(columns, rows)]
    if any(o.extrapolated.any() for o in result.at_budgets):
        lines.append("* beyond the widths that were trained")
    growth = [
        (f"r = {g.r:g}", g.n_params.text(), g.tokens.text(), f"{g.total:.3f}")
        for g in result.growth
    ]
    if growth:
        lines += ["", *table_text(("", "a: N* ∝ C^a", "b: D* ∝ C^b", "a + b"), growth)]
    sizes = [(f"r = {s.r:g}", f"{s.unique:.2f}", s.effective.text(2)) for s in result.sizes]
    if sizes:
        columns_of_sizes = ("relative to r = 1", "unique parameters", "performs like")
        lines += ["", *table_text(columns_of_sizes, sizes)]
    return lines
