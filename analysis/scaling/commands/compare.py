"""``python -m analysis compare``: what a change to the loop did to φ, to the loss and to width."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis.errors import AnalysisError
from analysis.estimate import Estimate
from analysis.page.style import save
from analysis.scaling.attribution import WidthShift
from analysis.scaling.commands.arguments import add_fit_arguments
from analysis.scaling.compare import Comparison, compare
from analysis.scaling.show import fit_figures
from analysis.scaling.show.curve_json import comparison_json
from analysis.scaling.show.fit_figures import PhiRow
from analysis.scaling.show.text import table_text
from analysis.tables.arguments import add_seed_argument, add_table_arguments, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.provenance import provenance
from analysis.tables.runs import load_runs


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``compare``."""
    parser = subparsers.add_parser(
        "compare",
        help="Δφ between a baseline (RUNS) and a variant",
        description="Refit a baseline (RUNS) and a variant on the budgets and r they share, with "
        "the same r = 1 runs, and bootstrap the difference. Writes comparison.json and the figure "
        "comparison (PNG, PDF) to the output folder.",
    )
    add_table_arguments(parser)
    parser.add_argument(
        "variant", type=Path, metavar="VARIANT", help="folder of run folders, or a CSV"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    add_fit_arguments(parser)
    add_seed_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read both, compare, draw, write, print."""
    if args.bootstrap < 2:
        raise AnalysisError(f"bootstrap {args.bootstrap}: a difference needs at least 2 resamples")
    baseline = read_table(args)
    variant = load_runs(args.variant, injection=args.injection, where=args.where, group=args.group)
    result = compare(
        baseline,
        variant,
        law=args.law,
        starts=args.starts,
        resamples=args.bootstrap,
        seed=args.seed,
    )
    rows = [
        PhiRow(f"{role}: {table.source.resolve().name}", phi.value, phi.ci95)
        for role, table, phi in (
            ("baseline", baseline, result.phi_baseline),
            ("variant", variant, result.phi_variant),
        )
    ]
    save(fit_figures.forest(rows), args.out / "figures", "comparison")
    document = comparison_json(
        result,
        provenance(baseline, seed=args.seed, command=args.command),
        provenance(variant, seed=args.seed, command=args.command),
    )
    write_text(args.out / "comparison.json", dumps(document))
    print("\n".join(lines(result)))
    print(f"\nwrote {args.out / 'comparison.json'}")


def lines(result: Comparison) -> list[str]:
    """The comparison as text."""
    text = [
        f"{len(result.budgets)} shared budgets, {result.n_cells} (budget, r) cells, "
        f"{result.baseline.n_runs} and {result.variant.n_runs} runs; "
        f"{result.n_accepted} of {result.resamples} paired resamples",
        "",
        *table_text(
            ("", "φ [95 %]"),
            [
                ("baseline", result.phi_baseline.text()),
                ("variant", result.phi_variant.text()),
                ("Δφ", result.delta_phi.text()),
            ],
        ),
        _verdict(result.delta_phi),
    ]
    if result.loss:
        text += [
            "",
            "loss, variant − baseline at equal budget and width, nats [95 %]; negative is a gain",
            *table_text(
                ("", "pairs", "measured", "from tokens", "from capacity", "Δφ alone predicts"),
                [
                    (
                        f"r = {s.r:g}",
                        f"{s.n_pairs}",
                        s.measured.text(),
                        s.tokens.text(),
                        s.capacity.text(),
                        s.from_phi.text(),
                    )
                    for s in result.loss
                ],
            ),
        ]
    if result.width:
        text += [
            "",
            "width, variant / baseline [95 %]",
            *table_text(
                ("", "compute-optimal", "direction", "of equal N_eff"),
                [
                    (f"r = {w.r:g}", w.optimal.text(), _direction(w), w.effective.text())
                    for w in result.width
                ],
            ),
        ]
    for run in result.set_aside:
        text.append(f"set aside: {run.run}: {run.reason}")
    text += [f"warning: {warning}" for warning in result.warnings]
    return text


def _verdict(delta: Estimate) -> str:
    assert delta.ci95 is not None
    low, high = delta.ci95
    if low > 0:
        return "the variant makes a recurrence worth more"
    if high < 0:
        return "the variant makes a recurrence worth less"
    return "these runs cannot tell which makes a recurrence worth more"


def _direction(shift: WidthShift) -> str:
    assert shift.optimal.ci95 is not None
    low, high = shift.optimal.ci95
    word = "wider" if low > 1 else "narrower" if high < 1 else "not resolved"
    return f"{word} (extrapolated)" if shift.extrapolated else word
