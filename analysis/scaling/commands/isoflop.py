"""``python -m analysis isoflop``: parabolas per (budget, r), their vertices and exponents."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.page import style as plots
from analysis.page.style import compact
from analysis.scaling.isoflop import Exponents, IsoFlopCurve, PowerLaw, exponents, isoflop_curves
from analysis.scaling.show import curve_figures as figures
from analysis.scaling.show.curve_json import isoflop_json
from analysis.scaling.show.text import table_text
from analysis.tables.arguments import add_table_arguments, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.provenance import provenance


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``isoflop``."""
    parser = subparsers.add_parser(
        "isoflop",
        help="iso-FLOP parabolas and the growth of their vertices",
        description="Fit a parabola in log N to the runs of each budget and r. Writes isoflop.json "
        "and the figures isoflop and isoflop_panels (PNG, PDF) to the output folder.",
    )
    add_table_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, fit, draw, write, print."""
    table = read_table(args)
    curves = isoflop_curves(table.runs)
    growth = exponents(curves)
    plots.save(figures.isoflop_curves(curves), args.out / "figures", "isoflop")
    plots.save(figures.isoflop_panels(curves), args.out / "figures", "isoflop_panels")
    document = isoflop_json(curves, growth, provenance(table, seed=0, command=args.command))
    write_text(args.out / "isoflop.json", dumps(document))
    print("\n".join([*_curve_lines(curves), "", *_exponent_lines(growth)]))
    print(f"\nwrote {args.out / 'isoflop.json'}")


def _curve_lines(curves: Sequence[IsoFlopCurve]) -> list[str]:
    header = ("budget", "r", "runs", "N*", "D*", "D*/N*", "L* (nats)")
    rows: list[tuple[str, ...]] = []
    for c in curves:
        start = (f"{c.budget:.3g}", f"{c.r:g}", f"{len(c.loss)}")
        if c.refused:
            rows.append((f"{c.budget:.3g}, r = {c.r:g}: {c.refused}",))
        else:
            rows.append(
                (
                    *start,
                    compact(c.n_opt),
                    compact(c.tokens_opt),
                    f"{c.tokens_opt / c.n_opt:.1f}",
                    f"{c.loss_opt:.4f}",
                )
            )
    return table_text(header, rows)


def _exponent_lines(growth: Sequence[Exponents]) -> list[str]:
    header = ("vertices", "a: N* ∝ C^a", "b: D* ∝ C^b", "a + b", "budgets")
    rows: list[tuple[str, ...]] = []
    for e in growth:
        if e.n_params is None or e.tokens is None:
            rows.append((str(e.refused),))
        else:
            a, b = _power_law(e.n_params), _power_law(e.tokens)
            rows.append((f"r = {e.r:g}", a, b, f"{e.total:.3f}", f"{e.n_params.n}"))
    return table_text(header, rows)


def _power_law(fit: PowerLaw) -> str:
    return f"{fit.exponent:.3f} ± {fit.se:.3f}"
