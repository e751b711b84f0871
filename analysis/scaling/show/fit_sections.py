"""The part of a report that says how well the law fits, how sure φ is, and from which runs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from analysis.page.html import Html, PageFigure, Section, folded, scientific, table
from analysis.page.style import compact, power_of_ten
from analysis.scaling.bootstrap import UNIT_LABELS
from analysis.scaling.fit import FitResult
from analysis.scaling.show import fit_figures
from analysis.scaling.show.answer_sections import phi_estimate
from analysis.scaling.show.fit_figures import PhiRow
from analysis.scaling.splits import LeftOut
from analysis.scaling.study import Study
from analysis.tables.provenance import Provenance

# arXiv:2604.21106, abstract and section 4.
PUBLISHED = (
    PhiRow("116 runs, r = 1, 2, 4, 8", 0.46, (0.41, 0.53), ours=False),
    PhiRow("truncated backpropagation", 0.38, ours=False),
    PhiRow("hyperconnections", 0.65, ours=False),
)


def warnings(study: Study) -> Section | None:
    """What a reader must know before using any number of the report."""
    if not study.warnings:
        return None
    items = "".join(f"<li>{escape(line)}</li>" for line in study.warnings)
    return Section("Warnings", f'<div class="warnings"><ul>{items}</ul></div>', anchor="warnings")


def law(study: Study) -> Section:
    """Parameters, restricted fits, fits by architecture, and what is left over."""
    runs = study.predictions()
    predicted = runs["predicted"].to_numpy(np.float64)
    fit = study.fit
    html = (
        f"<p>{escape(fit.law.formula)}, fitted to {fit.n_runs} runs; the injection matrix is "
        f"counted as <i>{study.table.injection}</i>. {fit.starts.at_optimum} of {fit.starts.n} "
        "random starts ended at this optimum.</p>"
    )
    html += _parameter_table(study)
    if study.restricted:
        held = {name.replace("phi=", "φ = "): one for name, one in study.restricted.items()}
        html += _fit_table(
            {"φ free": fit, **held},
            "The same law with φ held: what is lost if repeating adds nothing, or everything.",
        )
    html += _fit_table(
        {f"r = {r:g}": one for r, one in study.per_architecture.items()},
        "L = E + A·N<sup>−α</sup> + B·D<sup>−β</sup> fitted to each r alone, N = N<sub>once</sub> "
        "+ N<sub>rec</sub>.",
    )
    errors = table(
        ["r", "runs", "mean", "largest", "RMSE"],
        [
            [f"{r:g}", e.n, f"{e.mean:+.4f}", f"{e.max_abs:.4f}", f"{e.rmse:.4f}"]
            for r, e in study.residuals.items()
        ],
        caption="Residuals, measured − law, nats.",
    )
    return Section(
        "The fit",
        html,
        [
            PageFigure(
                "predicted_actual",
                fit_figures.predicted_against_actual(runs, predicted),
                f"Every run's loss against the law's. R² = {fit.r2:.4f}, "
                f"RMSE = {fit.rmse:.4f} nats.",
            ),
            PageFigure(
                "residuals",
                fit_figures.residuals(runs, runs["n_effective"].to_numpy(np.float64), predicted),
                "What the law leaves over. A slope or a bend, or an r that lies off zero as a "
                "whole, is something the law cannot say.",
            ),
        ],
        errors,
        anchor="fit",
    )


def _parameter_table(study: Study) -> str:
    boot = study.bootstrap
    rows = []
    for name, value in study.fit.params.items():
        digits = ".4f" if name in study.fit.law.exponents else ".4g"
        error = interval = None
        if not study.fit.is_free(name):
            interval = "held fixed"
        elif boot is not None:
            low, high = boot.interval(name)
            error = f"{boot.standard_error(name):.3g}"
            interval = f"{low:{digits}} to {high:{digits}}"
        rows.append([study.fit.law.symbols[name], f"{value:{digits}}", error, interval])
    caption = "Rounded; fit.json has full precision."
    if boot is not None:
        caption = (
            f"Standard error and interval from {len(boot.accepted)} of {len(boot.estimates)} "
            f"resamples of {boot.n_blocks} blocks, each one {UNIT_LABELS[boot.unit]}. {caption}"
        )
    return table(["parameter", "estimate", "s.e.", "95 % interval"], rows, caption=caption)


def _fit_table(fits: Mapping[str, FitResult | None], caption: str) -> str:
    symbols = next((fit.law.symbols for fit in fits.values() if fit), {})
    rows: list[list[object]] = []
    for name, fit in fits.items():
        if fit is None:
            rows.append([name, *[None] * (3 + len(symbols))])
            continue
        rows.append(
            [
                name,
                fit.n_runs,
                *(f"{fit.params[n]:.4g}" for n in symbols),
                f"{fit.objective:.3e}",
                f"{fit.r2:.4f}",
            ]
        )
    header = ["", "runs", *symbols.values(), "objective", "R²"]
    return table(header, rows, caption=caption)


def trust(study: Study) -> Section:
    """φ over parts of the study, bookings and published studies; the resampled parameters."""
    shown = [
        PageFigure(
            "forest",
            fit_figures.forest(_forest_rows(study)),
            "φ of all runs with its 95 % interval, of parts of the runs, under other bookings of "
            "the injection matrix, and published values (arXiv:2604.21106). Parts and bookings "
            "without a bar have no interval of their own.",
        )
    ]
    if study.bootstrap is not None:
        accepted = study.bootstrap.accepted
        names = [name for name in study.fit.params if study.fit.is_free(name)]
        shown.append(
            PageFigure(
                "bootstrap",
                fit_figures.bootstrap_histograms(
                    study.fit.law,
                    accepted[names],
                    study.fit.params,
                    {name: study.bootstrap.interval(name) for name in names},
                ),
                f"{len(accepted)} refits to redrawn blocks of runs. Line: estimate from all runs; "
                "shaded: central 95 %. Coefficients that vary widely on logarithmic axes.",
            )
        )
    condition = study.fit.condition.whole
    html = (
        "<p>Blocks of runs that share a budget and r are redrawn together: their errors hang "
        "together, and redrawing single runs would make the interval too narrow. Condition number "
        f"of the parameters at the optimum: {condition:.3g}.</p>"
    )
    return Section("How sure is φ", html, shown, _prediction_table(study), anchor="trust")


def _forest_rows(study: Study) -> list[PhiRow]:
    phi = phi_estimate(study)
    rows = [PhiRow("This study"), PhiRow(f"all {study.fit.n_runs} runs", phi.value, phi.ci95)]
    for name, half in (study.halves or {}).items():
        if half is not None:
            low, high = power_of_ten(half.budgets[0]), power_of_ten(half.budgets[-1])
            rows.append(PhiRow(f"{name} budgets, {low} – {high}", half.fit.params["phi"]))
    left_out = study.leave_one_out or {}
    for r, one in left_out.get("r", {}).items():
        if one is not None:
            rows.append(PhiRow(f"without r = {r:g}", one.fit.params["phi"]))
    for budget, one in left_out.get("budget", {}).items():
        if one is not None:
            rows.append(PhiRow(f"without {power_of_ten(budget)} FLOPs", one.fit.params["phi"]))
    for booking, value in (study.injection_sensitivity or {}).items():
        if value is not None and booking != study.table.injection:
            rows.append(PhiRow(f"injection matrix booked {booking}", value))
    return [*rows, PhiRow("Published"), *PUBLISHED]


def _prediction_table(study: Study) -> str:
    cases: dict[str, LeftOut | None] = {}
    left_out = study.leave_one_out or {}
    cases.update({f"r = {r:g}": one for r, one in left_out.get("r", {}).items()})
    cases.update({scientific(b) + " FLOPs": o for b, o in left_out.get("budget", {}).items()})
    if study.holdout is not None:
        cases["held out: " + ", ".join(scientific(b) for b in study.holdout.values)] = study.holdout
    rows = [
        [
            Html(name),
            one.errors.n,
            f"{one.fit.params['phi']:.3f}",
            f"{one.errors.mean:+.4f}",
            f"{one.errors.max_abs:.4f}",
            f"{one.errors.rmse:.4f}",
        ]
        for name, one in cases.items()
        if one is not None
    ]
    if not rows:
        return ""
    return table(
        ["runs left out", "runs", "φ without them", "mean error", "largest", "RMSE"],
        rows,
        caption="The law fitted without some runs, predicting those (measured − law, nats).",
    )


def runs(study: Study) -> Section:
    """Every run that was used, and every one that was not, with the reason."""
    frame = study.predictions()
    counts = ["n_once", "n_rec", "n_inject", "tokens"]
    rows = [
        [
            row["run"],
            Html(scientific(row["budget"])),
            f"{row['r']:g}",
            *(compact(row[name]) if row[name] else "0" for name in counts),
            f"{row['loss']:.4f}",
            f"{row['predicted']:.4f}",
            f"{row['residual']:+.4f}",
        ]
        for row in frame.sort_values(["budget", "r", "n_once", "n_rec"]).to_dict("records")
    ]
    header = ["run", "FLOPs", "r", "N once", "N rec", "N inject", "D", "loss", "law", "residual"]
    details = folded(f"All {len(rows)} runs that were fitted", table(header, rows))
    dropped = study.table.dropped
    html = f"<p>Fitted: {len(rows)} runs. Dropped: {len(dropped)}.</p>"
    if dropped:
        html += table(["dropped run", "reason"], [[run.run, run.reason] for run in dropped])
    return Section("Runs", html, details=details, anchor="runs")


def again(provenance: Provenance, files: Mapping[str, str]) -> Section:
    """The command, what went in, and what lies beside the report."""
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    command = provenance.command or "(made from Python, not by a command)"
    html = (
        f"<pre>{escape(command)}</pre>"
        + table(
            ["", ""],
            [
                ["input", provenance.input],
                ["SHA-256 of the input", provenance.sha256],
                ["seed", str(provenance.seed)],
                ["versions", versions],
                ["made", provenance.time],
            ],
        )
        + table(["file beside this report", "holds"], list(files.items()))
    )
    return Section("How to run it again", html, anchor="again")
