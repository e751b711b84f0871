"""``python -m analysis reproduce``: a paper's tables beside ours, line by line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.laws.counting import INJECTIONS
from analysis.laws.joint import JOINT
from analysis.scaling.allocation import allocate
from analysis.scaling.bootstrap import RESAMPLES
from analysis.scaling.fit import FitResult, fit
from analysis.scaling.isoflop import isoflop_curves
from analysis.scaling.show.text import table_text
from analysis.scaling.splits import Errors, errors
from analysis.scaling.study import Settings, Study, fit_study
from analysis.tables.arguments import add_seed_argument, positive
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
HEADER = ("", "", "paper", "ours", "difference")
QUANTITIES = {
    **JOINT.symbols,
    "r2": "R²",
    "objective": "Σ Huber",
    "rmse": "RMSE",
    "max_abs": "max |·|",
}

Values = dict[tuple[str, str], float]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``reproduce``."""
    parser = subparsers.add_parser(
        "reproduce",
        help="print a paper's tables beside ours",
        description="Refit the published runs and print the paper's tables beside ours. "
        "Losses are digitised from the paper's figure, so the last digits cannot agree.",
    )
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument(
        "--injection",
        choices=INJECTIONS,
        default="once",
        help="booking of the injection matrix; the published φ needs 'once' (default)",
    )
    parser.add_argument("--starts", type=positive, metavar="N")
    parser.add_argument("--bootstrap", type=positive, default=RESAMPLES, metavar="N")
    add_seed_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Fit and print."""
    title, runs_path, _ = STUDIES[args.study]
    table = load_runs(runs_path, injection=args.injection)
    settings = Settings(starts=args.starts, resamples=args.bootstrap, seed=args.seed)
    study = fit_study(table, settings, show_progress=True)
    print(title)
    print(f"{len(table)} runs (losses digitised), injection matrix booked: {args.injection}")
    for name, rows in compare(args.study, study).groupby("table", sort=False):
        print(f"\n{name}")
        print("\n".join(table_text(HEADER, list(_lines(rows)))))
    sensitivity = study.injection_sensitivity or {}
    booked = ", ".join(f"{choice} {phi:.3f}" for choice, phi in sensitivity.items() if phi)
    print(f"\nφ by booking of the injection matrix: {booked}")


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
    table = study.table
    values = _of_fit("joint, all 116", study.fit)
    if study.bootstrap is not None:
        low, high = study.bootstrap.interval("phi")
        values["joint, all 116", "phi ci95 low"] = low
        values["joint, all 116", "phi ci95 high"] = high
    for key, held in (study.restricted or {}).items():
        values |= _of_fit(f"φ fixed to {key.removeprefix('phi=')}", held)
    names = {"low": "lower half (56 runs)", "high": "upper half (60 runs)"}
    for key, half in (study.halves or {}).items():
        values |= _of_fit(names[key], half.fit if half else None)
    values |= _of_fit("four lower budgets (80 runs)", _four_lower_budgets(table, study.settings))
    for r, alone in study.per_architecture.items():
        values |= _of_fit(f"r = {r:g}", alone)
    values |= _gaps(table) | _sizes(table, study.fit)
    parts = {f"r = {r:g}": part for r, part in study.residuals.items()}
    for key, part in {**parts, "all": errors(study.fit.residuals)}.items():
        values |= _of_errors(key, part)
    return values


def _of_fit(row: str, fit: FitResult | None) -> Values:
    if fit is None:
        return {}
    found = {**fit.params, "r2": fit.r2, "objective": fit.objective}
    return {(row, quantity): value for quantity, value in found.items()}


def _of_errors(row: str, part: Errors) -> Values:
    return {(row, "mean"): part.mean, (row, "max_abs"): part.max_abs, (row, "rmse"): part.rmse}


def _gaps(table: RunTable) -> Values:
    """L*_r − L*_1 over the budgets, each L* the vertex of an iso-FLOPs parabola."""
    curves = {(curve.r, curve.budget): curve for curve in isoflop_curves(table.runs)}
    found: Values = {}
    for r in sorted({r for r, _ in curves} - {1.0}):
        gaps = [
            curve.loss_opt - curves[1.0, budget].loss_opt
            for (mine, budget), curve in curves.items()
            if mine == r
        ]
        found |= {(f"r = {r:g}", "lowest gap"): min(gaps), (f"r = {r:g}", "highest gap"): max(gaps)}
    return found


def _sizes(table: RunTable, fit: FitResult) -> Values:
    sizes = allocate(table, fit.fitted, None).sizes
    return {(f"r = {size.r:g}", "unique"): size.unique for size in sizes} | {
        (f"r = {size.r:g}", "effective"): size.effective.value for size in sizes
    }


def _four_lower_budgets(table: RunTable, settings: Settings) -> FitResult:
    fourth = np.unique(table.runs["budget"])[3]
    low = table.select(table.runs["budget"] <= fourth)
    return fit(low, starts=settings.starts, seed=settings.seed)


def _lines(rows: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    previous = ""
    columns = ["row", "quantity", "printed", "ours", "difference"]
    for row, quantity, printed, ours, difference in rows[columns].itertuples(index=False):
        first, _, rest = quantity.partition(" ")
        yield (
            "" if row == previous else row,
            f"{QUANTITIES.get(first, first)} {rest}".strip(),
            printed,
            _rounded(ours, quantity),
            _rounded(difference, quantity, sign="+"),
        )
        previous = row


def _rounded(value: float, quantity: str, sign: str = "") -> str:
    """One digit more than the paper prints."""
    if quantity == "objective":
        return f"{value:{sign}.3e}"
    digits = {"A": 1, "B": 1, "r2": 5}.get(quantity, 4)
    return f"{value:{sign}.{digits}f}"
