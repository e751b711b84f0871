"""``python -m analysis compare``: what a change to the loop did to φ, to the loss and to width."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from analysis.errors import AnalysisError
from analysis.page.output import add_output_arguments, deliver
from analysis.page.section import Block, Items, PageFigure, Section
from analysis.page.table import Column, Table
from analysis.scaling.attribution import WidthShift
from analysis.scaling.commands.arguments import add_fit_arguments
from analysis.scaling.compare import Comparison, compare
from analysis.scaling.show import fit_figures
from analysis.scaling.show.fit_figures import PhiRow
from analysis.tables.arguments import Command, add_table_arguments, read_table
from analysis.tables.estimate import Estimate
from analysis.tables.provenance import provenance
from analysis.tables.runs import load_runs

SCHEMA = 1


def _add_variant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "variant", type=Path, metavar="VARIANT", help="folder of run folders, or a CSV"
    )


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
    forest = [
        PhiRow(f"{role}: {table.source.resolve().name}", phi.value, phi.ci95)
        for role, table, phi in (
            ("baseline", baseline, result.phi_baseline),
            ("variant", variant, result.phi_variant),
        )
    ]
    origin = {
        role: provenance(table, seed=args.seed, command=args.command).to_json()
        for role, table in (("baseline", baseline), ("variant", variant))
    }
    section = comparison_section(result, forest)
    document = {"schema": SCHEMA, **section.json(), "provenance": origin}
    deliver([section], args, "comparison.json", document)


COMMAND = Command(
    "compare",
    run,
    (add_table_arguments, _add_variant, add_output_arguments, add_fit_arguments),
    help="Δφ between a baseline (RUNS) and a variant",
    description="Refit a baseline (RUNS) and a variant on the budgets and r they share, with "
    "the same r = 1 runs, and bootstrap the difference. Writes comparison.json and the figure "
    "comparison (SVG, PDF, PNG) to the output folder.",
)


def comparison_section(result: Comparison, forest: Sequence[PhiRow]) -> Section:
    """The comparison in words and tables."""
    phis = {
        "baseline": result.phi_baseline,
        "variant": result.phi_variant,
        "Δφ": result.delta_phi,
    }
    content: list[Block] = [
        f"{len(result.budgets)} shared budgets, {result.n_cells} (budget, r) cells, "
        f"{result.baseline.n_runs} and {result.variant.n_runs} runs; "
        f"{result.n_accepted} of {result.resamples} paired resamples",
        Table(
            "delta_phi",
            "",
            (Column("of", ""), Column("phi", "φ [95 %]", ".3f")),
            [{"of": name, "phi": phi} for name, phi in phis.items()],
        ),
        _verdict(result.delta_phi),
        PageFigure(
            "comparison",
            partial(fit_figures.forest, forest),
            "φ of both studies, refitted on what they share, with 95 % intervals.",
            f"φ of the baseline, {result.phi_baseline.text(2)}, and of the variant, "
            f"{result.phi_variant.text(2)}.",
        ),
    ]
    if result.loss:
        content.append(_loss_table(result))
    if result.width:
        content.append(_width_table(result))
    aside = [f"set aside: {run.run}: {run.reason}" for run in result.set_aside]
    content += [Items(aside), Items(result.warnings, warnings=True)]
    numbers = {name: getattr(result, name) for name in result.__dataclass_fields__}
    for name in ("baseline", "variant"):
        fit = numbers[name]
        counts = {"objective": fit.objective, "r2": fit.r2, "n": fit.n_runs}
        numbers[name] = fit.params | counts
    return Section("Comparison", content, "comparison", numbers)


def _loss_table(result: Comparison) -> Table:
    return Table(
        "loss_shares",
        "Loss, variant − baseline at equal budget and width, nats [95 %]; negative is a gain.",
        (
            Column("r", "r", "g"),
            Column("n_pairs", "pairs", "d"),
            Column("measured", "measured", ".3f"),
            Column("tokens", "from tokens", ".3f"),
            Column("capacity", "from capacity", ".3f"),
            Column("from_phi", "Δφ alone predicts", ".3f"),
        ),
        [vars(share) for share in result.loss],
    )


def _width_table(result: Comparison) -> Table:
    return Table(
        "width_shifts",
        "Width, variant / baseline [95 %].",
        (
            Column("r", "r", "g"),
            Column("optimal", "compute-optimal", ".3f"),
            Column("direction", "direction"),
            Column("effective", "of equal N_eff", ".3f"),
        ),
        [{**vars(shift), "direction": _direction(shift)} for shift in result.width],
    )


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
