"""``python -m analysis report``: one self-contained page about a folder of runs.

Sections about other measurements than the loss plug in through MEASUREMENTS: a function that looks
at the runs and returns a Section, or None when they do not hold its data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from analysis.convergence import section as convergence_sections
from analysis.errors import AnalysisError, NotIdentifiedError
from analysis.exits import section as exits_sections
from analysis.page.html import Section, page, save_figures, scientific
from analysis.readout import section as readout_sections
from analysis.scaling.allocation import allocate
from analysis.scaling.bootstrap import UNITS
from analysis.scaling.commands.arguments import add_fit_arguments
from analysis.scaling.isoflop import exponents, isoflop_curves
from analysis.scaling.show import answer_sections as scaling_sections
from analysis.scaling.show import fit_sections
from analysis.scaling.show.answer_sections import Scaling
from analysis.scaling.show.curve_json import allocation_json, isoflop_json
from analysis.scaling.show.fit_json import to_json as fit_json
from analysis.scaling.study import Settings, fit_study
from analysis.tables.arguments import add_seed_argument, add_table_arguments, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.provenance import Provenance, provenance
from analysis.tables.runs import RunTable

Measurement = Callable[[RunTable], Section | None]
MEASUREMENTS: Sequence[Measurement] = (
    convergence_sections.elastic_depth,
    convergence_sections.settling,
    exits_sections.exits_section,
    readout_sections.readout_section,
)

FILES = {
    "fit.json": "the fit at full precision: parameters, intervals, restricted fits, warnings",
    "isoflop.json": "every parabola with its runs, and the exponents of the vertices",
    "allocation.json": "the optimum of the law, frontiers, gaps, equivalent sizes",
    "runs.csv": "the runs, with what the law predicts for each",
    "bootstrap.csv": "the parameters of every resample",
    "figures/": "every figure as PNG (200 dpi) and PDF",
}


@dataclass(frozen=True)
class Report:
    """A page and the files that go beside it, by name."""

    title: str
    subtitle: str
    sections: list[Section]
    files: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Figures and data first, the page last: where report.html stands, the rest is complete."""
        save_figures(self.sections, folder / "figures")
        for name, text in self.files.items():
            write_text(folder / name, text)
        path = folder / "report.html"
        write_text(path, page(self.title, self.subtitle, self.sections))
        return path


def make_report(
    runs: RunTable,
    settings: Settings | None = None,
    *,
    command: str | None = None,
    measurements: Sequence[Measurement] = MEASUREMENTS,
    show_progress: bool = False,
) -> Report:
    """Fit, allocate and describe a study.

    Raises:
        NotIdentifiedError: the runs support no joint law, and hold no other measurement either.
    """
    settings = settings or Settings()
    origin = provenance(runs, seed=settings.seed, command=command)
    measured = [section for make in measurements if (section := make(runs)) is not None]
    try:
        scaling = scale(runs, settings, show_progress=show_progress)
    except NotIdentifiedError as reason:
        if not measured:
            raise
        missing = Section("Scaling law", f"<p>There is none for these runs: {reason}.</p>")
        sections = [*measured, missing, fit_sections.again(origin, {})]
        return Report("Measurements", _subtitle(runs), sections)
    files = _files(scaling, origin)
    listed = {name: text for name, text in FILES.items() if name in files or name.endswith("/")}
    warned = fit_sections.warnings(scaling.study)
    sections = [
        scaling_sections.answer(scaling),
        *([warned] if warned else []),
        scaling_sections.isoflop(scaling),
        scaling_sections.allocation(scaling),
        scaling_sections.price(scaling),
        fit_sections.law(scaling.study),
        fit_sections.trust(scaling.study),
        *measured,
        fit_sections.runs(scaling.study),
        fit_sections.again(origin, listed),
    ]
    title = "What is one recurrence worth?"
    return Report(title, _subtitle(scaling.study.table), sections, files)


def scale(runs: RunTable, settings: Settings, *, show_progress: bool = False) -> Scaling:
    """Everything about the loss of a study: the law, parabolas, allocation."""
    study = fit_study(runs, settings, show_progress=show_progress)
    resamples = None if study.bootstrap is None else study.bootstrap.accepted
    allocation = refused = None
    try:
        allocation = allocate(study.table, study.fit.fitted, resamples)
    except AnalysisError as reason:  # shown in the report in place of the curves
        refused = str(reason)
        study.warnings.append(f"allocation: null: {refused}")
    curves = isoflop_curves(study.table.runs)
    return Scaling(study, curves, exponents(curves), allocation, refused)


def _files(scaling: Scaling, origin: Provenance) -> dict[str, str]:
    study = scaling.study
    files = {
        "fit.json": dumps(fit_json(study, origin)),
        "isoflop.json": dumps(isoflop_json(scaling.curves, scaling.exponents, origin)),
        "runs.csv": study.predictions().to_csv(index=False),
    }
    if scaling.allocation is not None:
        files["allocation.json"] = dumps(allocation_json(scaling.allocation, origin))
    if study.bootstrap is not None:
        files["bootstrap.csv"] = study.bootstrap.estimates.to_csv(index=False)
    return files


def _subtitle(runs: RunTable) -> str:
    budgets = sorted(runs.runs["budget"].unique())
    values = ", ".join(f"{r:g}" for r in sorted(runs.runs["r"].unique()))
    span = scientific(budgets[0])
    if len(budgets) > 1:
        span = f"{len(budgets)} budgets from {span} to {scientific(budgets[-1])}"
    name = escape(runs.source.resolve().name)
    return f"{name} · {len(runs)} runs · r = {values} · {span} training FLOPs"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``report``."""
    parser = subparsers.add_parser(
        "report",
        help="one self-contained HTML page, with figures and tables",
        description="Fit RUNS and write report.html, its figures as PNG and PDF, and its numbers "
        "as JSON and CSV to the output folder.",
    )
    add_table_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    add_fit_arguments(parser)
    parser.add_argument(
        "--unit",
        choices=UNITS,
        default="cell",
        help="block of the bootstrap; cell is (budget, r) (default: cell)",
    )
    add_seed_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read, fit, draw, write."""
    settings = Settings(
        law=args.law, starts=args.starts, resamples=args.bootstrap, unit=args.unit, seed=args.seed
    )
    runs = read_table(args)
    report = make_report(runs, settings, command=args.command, show_progress=True)
    print(f"wrote {report.write(args.out)}")
