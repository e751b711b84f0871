"""``python -m analysis report``: one self-contained page about a folder of runs.

Sections about other measurements than the loss plug in through ``measurements``.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.errors import AnalysisError, NotIdentifiedError
from analysis.measurements import SECTIONS
from analysis.page.characters import csv
from analysis.page.html import page
from analysis.page.numbers import scientific
from analysis.page.output import add_output_arguments, write_figures, write_tables
from analysis.page.section import Section, Text
from analysis.page.table import Column, Table
from analysis.scaling.allocation import allocate
from analysis.scaling.commands.arguments import add_fit_arguments, add_unit_argument
from analysis.scaling.isoflop import exponents, isoflop_curves
from analysis.scaling.show import answer_sections, curve_sections, fit_sections
from analysis.scaling.show.answer_sections import Scaling
from analysis.scaling.show.curve_json import allocation_json, isoflop_json
from analysis.scaling.show.fit_json import to_json as fit_json
from analysis.scaling.study import Settings, fit_study
from analysis.tables.arguments import Command, add_table_arguments, read_table
from analysis.tables.files import dumps, write_text
from analysis.tables.provenance import Provenance, provenance
from analysis.tables.runs import RunTable

FILES = {
    "fit.json": "the fit at full precision: parameters, intervals, restricted fits, warnings",
    "isoflop.json": "every parabola with its runs, and the exponents of the vertices",
    "allocation.json": "the optimum of the law, frontiers, gaps, equivalent sizes",
    "runs.csv": "the runs, with what the law predicts for each",
    "bootstrap.csv": "the parameters of every resample",
    "figures/": "every figure as SVG, PDF and PNG (200 dpi)",
}


@dataclass(frozen=True)
class Report:
    """A page and the files that go beside it, by name."""

    title: str
    subtitle: str
    sections: list[Section]
    files: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, tables: str | None = None) -> Path:
        """Figures and data first, the page last: where report.html stands, the rest is complete."""
        write_figures(self.sections, folder)
        write_tables(self.sections, folder, tables)
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
    measurements: Sequence[Callable[[RunTable], Section | None]] = SECTIONS,
    show_progress: bool = False,
) -> Report:
    """Fit, allocate and describe a study.

    Raises:
        NotIdentifiedError: the runs support no law, and hold no other measurement either.
    """
    settings = settings or Settings()
    origin = provenance(runs, seed=settings.seed, command=command)
    measured = [section for make in measurements if (section := make(runs)) is not None]
    try:
        scaling = scale(runs, settings, show_progress=show_progress)
    except NotIdentifiedError as reason:
        if not measured:
            raise
        missing = Section("Scaling law", [f"There is none for these runs: {reason}."], "law")
        left_out = [f"{run.run} is left out: {run.reason}" for run in runs.dropped]
        warned = answer_sections.warnings([*runs.warnings, *left_out])
        sections = [*measured, missing, *([warned] if warned else []), again(origin, {})]
        return Report("Measurements", _subtitle(runs), sections)
    files = _files(scaling, origin)
    study, curves = scaling.study, scaling.curves
    found = (scaling.allocation, scaling.allocation_refused)
    parts = [
        answer_sections.answer(scaling),
        answer_sections.warnings(study.warnings),
        answer_sections.which_law(study),
        curve_sections.isoflop(curves),
        curve_sections.allocation(*found, curves, scaling.exponents),
        curve_sections.price(scaling.allocation, curves, study.fit.law.name),
        fit_sections.law(study),
        fit_sections.trust(study),
        *measured,
        fit_sections.runs(study),
        again(origin, files),
    ]
    there = [section for section in parts if section is not None]
    return Report("What is one recurrence worth?", _subtitle(study.table), there, files)


def scale(runs: RunTable, settings: Settings, *, show_progress: bool = False) -> Scaling:
    """Everything about the loss of a study: the law, parabolas, allocation."""
    study = fit_study(runs, settings, show_progress=show_progress)
    draws = None if study.bootstrap is None else study.bootstrap.draws
    allocation = refused = None
    try:
        allocation = allocate(study.table, study.fit.fitted, draws)
    except AnalysisError as reason:  # shown in the report in place of the curves
        refused = str(reason)
        study.warnings.append(f"allocation: null: {refused}")
    curves = isoflop_curves(study.table.runs)
    return Scaling(study, curves, exponents(curves), allocation, refused)


def again(origin: Provenance, files: Mapping[str, str]) -> Section:
    """The command, what went in, and what lies beside the report."""
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    facts = {
        "input": origin.input,
        "SHA-256 of the input": origin.sha256,
        "seed": str(origin.seed),
        "versions": versions,
        "made": origin.time,
    }
    beside = {name: text for name, text in FILES.items() if name in files or name.endswith("/")}

    def pairs(name: str, titles: tuple[str, str], of: Mapping[str, str]) -> Table:
        columns = (Column("what", titles[0]), Column("value", titles[1]))
        rows = [{"what": what, "value": value} for what, value in of.items()]
        return Table(name, "", columns, rows)

    return Section(
        "How to run it again",
        [
            Text(origin.command or "(made from Python, not by a command)", "command"),
            pairs("provenance", ("made from", ""), facts),
            pairs("files", ("file beside this report", "holds"), beside),
        ],
        anchor="again",
    )


def _files(scaling: Scaling, origin: Provenance) -> dict[str, str]:
    study = scaling.study
    files = {
        "fit.json": dumps(fit_json(study, origin)),
        "isoflop.json": dumps(isoflop_json(scaling.curves, scaling.exponents, origin)),
        "runs.csv": csv(study.predictions()),
    }
    if scaling.allocation is not None:
        files["allocation.json"] = dumps(allocation_json(scaling.allocation, origin))
    if study.bootstrap is not None:
        files["bootstrap.csv"] = csv(study.bootstrap.estimates)
    return files


def _subtitle(runs: RunTable) -> str:
    budgets = sorted(runs.runs["budget"].unique())
    values = ", ".join(f"{r:g}" for r in sorted(runs.runs["r"].unique()))
    span = scientific(budgets[0])
    if len(budgets) > 1:
        span = f"{len(budgets)} budgets from {span} to {scientific(budgets[-1])}"
    n = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return f"{runs.source.resolve().name} · {n} · r = {values} · {span} training FLOPs"


def run(args: argparse.Namespace) -> None:
    """Read, fit, draw, write."""
    settings = Settings(
        law=args.law, starts=args.starts, resamples=args.bootstrap, unit=args.unit, seed=args.seed
    )
    runs = read_table(args)
    report = make_report(runs, settings, command=args.command, show_progress=True)
    print(f"wrote {report.write(args.out, args.tables)}")


COMMAND = Command(
    "report",
    run,
    (add_table_arguments, add_output_arguments, add_fit_arguments, add_unit_argument),
    help="one self-contained HTML page, with figures and tables",
    description="Fit RUNS and write report.html, its figures as SVG, PDF and PNG, and its "
    "numbers as JSON and CSV to the output folder.",
)
