"""``python -m analysis reproduce``: a paper's tables beside ours, line by line."""

import argparse
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.laws.counting import INJECTIONS
from analysis.laws.joint import JOINT
from analysis.page.output import add_tables_argument, write_tables
from analysis.page.section import Block, Section
from analysis.page.table import Column, Table
from analysis.scaling.allocation import allocate
from analysis.scaling.bootstrap import RESAMPLES
from analysis.scaling.fit import FitResult, fit
from analysis.scaling.isoflop import isoflop_curves
from analysis.scaling.splits import errors
from analysis.scaling.study import Settings, Study, fit_study
from analysis.tables.arguments import Command, add_seed_argument, positive
from analysis.tables.runs import RunTable, load_runs

DATA = Path(__file__).parents[2] / "data"
#: Study → its runs and what its paper publishes about them.
STUDIES = {
    "schwethelm2026": (
        "Schwethelm, Rueckert, Kaissis: How Much Is One Recurrence Worth? (arXiv:2604.21106)",
        DATA / "schwethelm2026_isodepth.csv",
        DATA / "schwethelm2026_published.csv",
    )
}
QUANTITIES = {
    **JOINT.symbols,
    "r2": "R²",
    "objective": "Σ Huber",
    "rmse": "RMSE",
    "max_abs": "max |·|",
}

COLUMNS = ["row", "quantity", "printed", "ours", "difference"]

Values = dict[tuple[str, str], float]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument(
        "--injection",
        choices=INJECTIONS,
        default="once",
        help="booking of the injection matrix; the published φ needs 'once' (default)",
    )
    parser.add_argument("--starts", type=positive, metavar="N")
    parser.add_argument("--bootstrap", type=positive, default=RESAMPLES, metavar="N")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where --tables are written")


def run(args: argparse.Namespace) -> None:
    """Fit and print."""
    if args.tables and args.out is None:
        raise AnalysisError(f"--tables={args.tables}: needs --out=DIR to write to")
    title, runs_path, _ = STUDIES[args.study]
    table = load_runs(runs_path, injection=args.injection)
    settings = Settings(starts=args.starts, resamples=args.bootstrap, seed=args.seed)
    study = fit_study(table, settings, show_progress=True)
    sensitivity = study.injection_sensitivity or {}
    counted = ", ".join(f"{choice} {phi:.3f}" for choice, phi in sensitivity.items() if phi)
    compared = compare(args.study, study)
    content: list[Block] = [
        title,
        f"{len(table)} runs (losses digitised), injection matrix counted: {args.injection}",
        *(_table(name, rows) for name, rows in compared.groupby("table", sort=False)),
        f"φ by where the injection matrix is counted: {counted}",
    ]
    section = Section(title, content, "reproduction")
    if args.out is not None:
        write_tables([section], args.out, args.tables)
    print(section.text())


COMMAND = Command(
    "reproduce",
    run,
    (_add_arguments, add_tables_argument, add_seed_argument),
    help="print a paper's tables beside ours",
    description="Refit the published runs and print the paper's tables beside ours. "
    "Losses are digitised from the paper's figure, so the last digits cannot agree.",
)


def compare(name: str, study: Study) -> pd.DataFrame:
    """Columns table, row, quantity, printed (in the paper), ours, difference (ours − printed)."""
    published = pd.read_csv(STUDIES[name][2], dtype={"value": str})
    values = _values(study)
    ours = []
    for row, quantity in zip(published["row"], published["quantity"], strict=True):
        if (row, quantity) not in values:
            raise AnalysisError(f"{STUDIES[name][2]}: nothing computed is called {row}, {quantity}")
        ours.append(values[row, quantity])
    frame = published.rename(columns={"value": "printed"}).assign(ours=ours)
    return frame.assign(difference=frame["ours"] - frame["printed"].astype(float))


def _values(study: Study) -> Values:
    """Our numbers under the paper's names of rows and quantities."""
    table, fitted = study.table, study.fit
    rows: dict[str, FitResult | None] = {"joint, all 116": fitted}
    for key, held in (study.restricted or {}).items():
        rows[f"φ fixed to {key.removeprefix('phi=')}"] = held
    names = {"low": "lower half (56 runs)", "high": "upper half (60 runs)"}
    for key, half in (study.halves or {}).items():
        rows[names[key]] = None if half is None else half.fit
    rows["four lower budgets (80 runs)"] = _four_lower_budgets(table, study.settings)
    rows |= {f"r = {r:g}": alone for r, alone in study.per_architecture.items()}
    found: dict[str, dict[str, float]] = {
        row: {**one.params, "r2": one.r2, "objective": one.objective}
        for row, one in rows.items()
        if one is not None
    }
    if study.bootstrap is not None:
        ends = study.bootstrap.interval("phi")
        found["joint, all 116"] |= dict(zip(("phi ci95 low", "phi ci95 high"), ends, strict=True))
    values = {(row, name): value for row, of in found.items() for name, value in of.items()}
    parts = {f"r = {r:g}": part for r, part in study.residuals.items()}
    for row, part in {**parts, "all": errors(fitted.residuals)}.items():
        values |= {(row, name): getattr(part, name) for name in ("mean", "max_abs", "rmse")}
    for size in allocate(table, fitted.fitted, None).sizes:
        values[f"r = {size.r:g}", "unique"] = size.unique
        values[f"r = {size.r:g}", "effective"] = size.effective.value
    return values | _gaps(table)


def _gaps(table: RunTable) -> Values:
    """L*_r − L*_1 over the budgets, each L* the vertex of an iso-FLOPs parabola."""
    curves = isoflop_curves(table.runs)
    loss = pd.Series({(c.r, c.budget): c.loss_opt for c in curves}).unstack(0)
    gaps = loss.drop(columns=1).sub(loss[1], axis=0)
    lowest = {(f"r = {r:g}", "lowest gap"): gap for r, gap in gaps.min().items()}
    return lowest | {(f"r = {r:g}", "highest gap"): gap for r, gap in gaps.max().items()}


def _four_lower_budgets(table: RunTable, settings: Settings) -> FitResult:
    fourth = np.unique(table.runs["budget"])[3]
    low = table.select(table.runs["budget"] <= fourth)
    return fit(low, starts=settings.starts, seed=settings.seed)


def _table(name: Hashable, rows: pd.DataFrame) -> Table:
    """One of the paper's tables; ours and the difference with one digit more than it prints."""
    records = []
    for row, quantity, printed, ours, difference in rows[COLUMNS].itertuples(index=False):
        first, _, rest = quantity.partition(" ")
        records.append(
            {
                "row": row,
                "quantity": f"{QUANTITIES.get(first, first)} {rest}".strip(),
                "printed": printed,
                "ours": _rounded(ours, quantity),
                "difference": _rounded(difference, quantity, sign="+"),
            }
        )
    columns = [Column("row", ""), Column("quantity", "")]
    titles = {"printed": "paper", "ours": "ours", "difference": "difference"}
    columns += [Column(key, title, str) for key, title in titles.items()]
    return Table(str(name), str(name), columns, records)


def _rounded(value: float, quantity: str, sign: str = "") -> str:
    """One digit more than the paper prints."""
    if quantity == "objective":
        return f"{value:{sign}.3e}"
    digits = {"A": 1, "B": 1, "r2": 5}.get(quantity, 4)
    return f"{value:{sign}.{digits}f}"
