"""How well the law fits, how far φ moves over parts of the runs, and the runs themselves."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from analysis.page.numbers import compact, scientific
from analysis.page.section import Block, Folded, PageFigure, Section
from analysis.page.table import Column, Table
from analysis.scaling.bootstrap import UNIT_LABELS
from analysis.scaling.fit import FitResult
from analysis.scaling.show import fit_figures
from analysis.scaling.show.fit_figures import PhiRow
from analysis.scaling.splits import LeftOut
from analysis.scaling.study import Study

#: arXiv:2604.21106, abstract and section 4.
PUBLISHED = (
    PhiRow("116 runs, r = 1, 2, 4, 8", 0.46, (0.41, 0.53), ours=False),
    PhiRow("truncated backpropagation", 0.38, ours=False),
    PhiRow("hyperconnections", 0.65, ours=False),
)


def law(study: Study) -> Section:
    """Parameters, restricted fits, fits by architecture, and what is left over."""
    fit, runs = study.fit, study.predictions()
    content: list[Block] = [
        fit.law.formula,
        f"Fitted to {fit.n_runs} runs; the injection matrix is counted as "
        f"{study.table.injection}. {fit.starts.at_optimum} of {fit.starts.n} random starts ended "
        f"at this optimum. Largest residual {fit.max_abs_residual:.4f}, RMSE {fit.rmse:.4f} nats.",
        parameter_table(study),
    ]
    if study.restricted:
        held = {name.replace("phi=", "φ = "): one for name, one in study.restricted.items()}
        caption = "The same law with φ held: what is lost if repeating adds nothing, or everything."
        content.append(fit_table("restricted", {"as fitted": fit, **held}, caption))
    alone = {f"r = {r:g} alone": one for r, one in study.per_architecture.items()}
    if any(alone.values()):
        caption = "L = E + A·N^−α + B·D^−β fitted to each r alone, N = N_once + N_rec."
        content.append(fit_table("per_architecture", alone, caption))
    content += [
        PageFigure(
            "predicted_actual",
            partial(fit_figures.predicted_against_actual, runs),
            f"Every run's loss against the law's. R² = {fit.r2:.4f}, RMSE = {fit.rmse:.4f} nats.",
            f"Measured loss against the loss of the law for {fit.n_runs} runs, along the diagonal.",
        ),
        PageFigure(
            "residuals",
            partial(fit_figures.residuals, runs),
            "What the law leaves over. A slope or a bend, or an r that lies off zero as a whole, "
            "is something the law cannot say.",
            "Four charts of measured minus predicted loss, at most "
            f"{fit.max_abs_residual:.3f} nats: against effective parameters, training tokens, "
            "training FLOPs and r.",
        ),
        residual_table(study),
    ]
    return Section("The fit", content, anchor="fit")


def parameter_table(study: Study) -> Table:
    """Estimates with their bootstrap intervals."""
    fit, boot = study.fit, study.bootstrap
    caption = "Rounded; fit.json has full precision."
    if boot is not None:
        caption = (
            f"Standard error and interval from {len(boot.accepted)} of {len(boot.estimates)} "
            f"resamples of {boot.n_blocks} blocks, each one {UNIT_LABELS[boot.unit]}. {caption}"
        )

    def row(name: str) -> dict[str, Any]:
        estimate = study.resampled(name)
        how = "fitted" if fit.is_free(name) else "held fixed"
        symbol = fit.law.symbols[name]
        return {"symbol": symbol, "estimate": estimate, "se": estimate.se, "how": how}

    return Table(
        "parameters",
        caption,
        (
            Column("symbol", "parameter"),
            Column("estimate", "estimate [95 %]", ".4g"),
            Column("se", "s.e.", ".2g"),
            Column("how", ""),
        ),
        [row(name) for name in fit.params],
    )


def fit_table(name: str, fits: Mapping[str, FitResult | None], caption: str) -> Table:
    """Fits beside each other; those that could not be made have dashes."""
    symbols = next((fit.law.symbols for fit in fits.values() if fit), {})

    def row(label: str, fit: FitResult | None) -> dict[str, Any]:
        numbers = ("n_runs", "objective", "r2")
        values = {key: fit and getattr(fit, key) for key in numbers}
        params = {key: fit and fit.params[key] for key in symbols}
        starts = fit and f"{fit.starts.at_optimum} of {fit.starts.n}"
        return {"fit": label, **values, **params, "starts": starts}

    return Table(
        name,
        caption,
        (
            Column("fit", ""),
            Column("n_runs", "runs", "d"),
            *(Column(key, symbol, ".4g") for key, symbol in symbols.items()),
            Column("objective", "objective", ".3e"),
            Column("r2", "R²", ".4f"),
            Column("starts", "starts agreeing", str),
        ),
        [row(label, fit) for label, fit in fits.items()],
    )


def residual_table(study: Study) -> Table:
    """Residuals by r."""
    return Table(
        "residuals",
        "Residuals by r, measured − law, nats.",
        _error_columns("r"),
        [{"of": f"{r:g}", **vars(errors)} for r, errors in study.residuals.items()],
    )


def _error_columns(what: str, *more: Column) -> tuple[Column, ...]:
    return (
        Column("of", what),
        Column("n", "runs", "d"),
        *more,
        Column("mean", "mean", "+.4f"),
        Column("max_abs", "largest", ".4f"),
        Column("rmse", "RMSE", ".4f"),
    )


def trust(study: Study) -> Section | None:
    """φ over parts of the study, ways of counting and published studies; None without a φ."""
    if not study.fit.law.has_phi:
        return None
    content: list[Block] = [
        "Blocks of runs that share a budget and r are redrawn together: their errors hang "
        "together, and redrawing single runs would make the interval too narrow. Condition number "
        f"of the parameters at the optimum: {study.fit.condition.whole:.3g}.",
        PageFigure(
            "forest",
            partial(fit_figures.forest, forest_rows(study)),
            "φ of all runs with its 95 % interval, of parts of the runs, with the injection matrix "
            "counted elsewhere, and published values (arXiv:2604.21106). Where there is no bar, "
            "there is no interval.",
            f"φ of this study, {study.fit.params['phi']:.2f} by the {study.fit.law.name} law, "
            "beside φ of parts of the runs and published values, on an axis from 0 to 1.",
        ),
    ]
    if study.bootstrap is not None:
        accepted, boot = study.bootstrap.accepted, study.bootstrap
        names = [name for name in study.fit.params if study.fit.is_free(name)]
        intervals = {name: boot.interval(name) for name in names}
        content.append(
            PageFigure(
                "bootstrap",
                partial(
                    fit_figures.bootstrap_histograms,
                    study.fit.law,
                    accepted[names],
                    study.fit.params,
                    intervals,
                ),
                f"{len(accepted)} refits to redrawn blocks of runs. Line: estimate from all runs; "
                "shaded: central 95 %. Coefficients that vary widely on logarithmic axes.",
                f"Histograms of {len(accepted)} resampled values of each parameter, with the "
                "estimate and the central 95 %.",
            )
        )
    content.append(Folded("φ of every part", [_phi_table(study)], in_terminal=True))
    table = prediction_table(study)
    return Section("How sure is φ", [*content, *([table] if table.rows else [])], anchor="trust")


def _phi_table(study: Study) -> Table:
    rows = [row for row in forest_rows(study) if row.phi is not None]
    return Table(
        "phi",
        "",
        (Column("of", "φ of"), Column("phi", "φ [95 %]", ".3f")),
        [{"of": row.label, "phi": row.estimate} for row in rows],
    )


def forest_rows(study: Study) -> list[PhiRow]:
    """φ by both laws, of parts of the runs, by counting, and published."""
    fit, local, phi = study.fit, study.local, study.resampled("phi")
    rows = [PhiRow(f"This study, {fit.n_runs} runs")]
    rows.append(PhiRow(f"{fit.law.name} law", phi.value, phi.ci95))
    if local is not None:
        rows.append(PhiRow("local law", local.phi, local.estimate.ci95))
    parts = []
    for name, half in (study.halves or {}).items():
        if half is not None:
            low, high = scientific(half.budgets[0]), scientific(half.budgets[-1])
            parts.append(PhiRow(f"{name} budgets, {low} – {high}", half.fit.params["phi"]))
    left_out = study.leave_one_out or {}
    for r, one in left_out.get("r", {}).items():
        if one is not None:
            parts.append(PhiRow(f"without r = {r:g}", one.fit.params["phi"]))
    for budget, one in left_out.get("budget", {}).items():
        if one is not None:
            parts.append(PhiRow(f"without {scientific(budget)} FLOPs", one.fit.params["phi"]))
    for choice, value in (study.injection_sensitivity or {}).items():
        if value is not None and choice != study.table.injection:
            parts.append(PhiRow(f"injection matrix counted {choice}", value))
    if parts:
        rows += [PhiRow(f"Parts of it, by the {fit.law.name} law"), *parts]
    return [*rows, PhiRow("Published"), *PUBLISHED]


def prediction_table(study: Study) -> Table:
    """How well the law predicts runs that it was not fitted to."""
    cases: dict[str, LeftOut | None] = {}
    left_out = study.leave_one_out or {}
    cases |= {f"r = {r:g}": one for r, one in left_out.get("r", {}).items()}
    cases |= {f"{scientific(b)} FLOPs": one for b, one in left_out.get("budget", {}).items()}
    if study.holdout is not None:
        cases["held out: " + ", ".join(map(scientific, study.holdout.values))] = study.holdout
    return Table(
        "left_out",
        "The law fitted without some runs, predicting those (measured − law, nats).",
        _error_columns("runs left out", Column("phi", "φ without them", ".3f")),
        [
            {"of": name, "phi": one.fit.phi, **vars(one.errors)}
            for name, one in cases.items()
            if one is not None
        ],
    )


def runs(study: Study) -> Section:
    """Every run that was used, and every one that was not, with the reason."""
    frame = study.predictions().sort_values(["budget", "r", "n_once", "n_rec"])
    fitted = Table(
        "runs",
        "Parameters N, tokens D, losses in nats.",
        (
            Column("run", "run"),
            Column("budget", "FLOPs", scientific),
            Column("r", "r", "g"),
            Column("n_once", "N once", compact),
            Column("n_rec", "N rec", compact),
            Column("n_inject", "N inject", compact),
            Column("tokens", "D", compact),
            Column("loss", "loss", ".4f"),
            Column("predicted", "law", ".4f"),
            Column("residual", "residual", "+.4f"),
        ),
        frame.to_dict("records"),
    )
    dropped = study.table.dropped
    content: list[Block] = [f"Fitted: {len(frame)} runs. Left out: {len(dropped)}."]
    if dropped:
        content.append(
            Table(
                "dropped",
                "",
                (Column("run", "run left out"), Column("reason", "reason")),
                [vars(run) for run in dropped],
            )
        )
    content.append(Folded(f"All {len(frame)} runs that were fitted", [fitted]))
    return Section("Runs", content, anchor="runs")
