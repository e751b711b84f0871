"""A study's results as text for the terminal; three to four digits, the rest is in ``fit.json``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.laws.laws import JointLaw
from analysis.scaling.bootstrap import UNIT_LABELS
from analysis.scaling.fit import FitResult
from analysis.scaling.splits import Errors
from analysis.scaling.study import Study

SYMBOLS = {"phi": "φ", "alpha": "α", "beta": "β", "E": "E", "A": "A", "B": "B"}
FIT_HEADER = ("", "runs", "φ", "α", "β", "E", "A", "B", "Σ Huber", "R²", "starts agreeing")
ERROR_HEADER = ("", "runs", "mean", "max |·|", "RMSE")
MAX_LISTED = 12


def summary(study: Study) -> str:
    """The whole summary."""
    return "\n".join(
        line
        for part in (
            _heading(study),
            _parameters(study),
            _fits(study),
            _residuals(study),
            _stability(study),
            _notes(study),
        )
        for line in [*part, ""]
    ).rstrip()


def _heading(study: Study) -> Iterator[str]:
    law = (
        "joint law: L = E + A·(N_once + r^φ·N_rec)^−α + B·D^−β"
        if isinstance(study.fit.law, JointLaw)
        else "Chinchilla law: L = E + A·N^−α + B·D^−β"
    )
    table = study.table
    yield law
    yield (
        f"{len(table)} runs from {table.source}, {len(table.dropped)} dropped; "
        f"injection matrix booked: {table.injection}"
    )


def _parameters(study: Study) -> Iterator[str]:
    fit, resampled = study.fit, study.bootstrap
    rows = []
    for name, value in fit.params.items():
        free = name in fit.free or f"log_{name}" in fit.free
        interval, error = "held fixed" if not free else "", ""
        if free and resampled is not None:
            low, high = resampled.interval(name)
            interval, error = f"[{low:.4g}, {high:.4g}]", f"{resampled.standard_error(name):.2g}"
        rows.append((SYMBOLS[name], f"{value:.4g}", interval, error))
    yield from table_text(("", "estimate", "95 % interval", "s.e."), rows)
    if resampled is not None:
        yield (
            f"intervals: {len(resampled.accepted)} of {len(resampled.estimates)} resamples of "
            f"{resampled.n_blocks} blocks, each one {UNIT_LABELS[resampled.unit]}"
        )
    yield f"largest residual {fit.max_abs_residual:.4f}, RMSE {fit.rmse:.4f} nats"


def _fits(study: Study) -> Iterator[str]:
    main = "fitted" if study.settings.phi is None else "as asked"
    fits: list[tuple[str, FitResult | None]] = [(main, study.fit)]
    for name, fit in (study.restricted or {}).items():
        fits.append((name.replace("phi=", "φ = "), fit))
    fits += [(f"r = {r:g} alone", fit) for r, fit in study.per_architecture.items()]
    yield from table_text(FIT_HEADER, [_fit_row(name, fit) for name, fit in fits])


def _fit_row(name: str, fit: FitResult | None) -> tuple[str, ...]:
    if fit is None:
        return (name, "not available, see warnings")
    params = fit.params
    edge = " (at bound: " + ", ".join(fit.at_bounds) + ")" if fit.at_bounds else ""
    return (
        name,
        f"{fit.n_runs}",
        f"{params['phi']:.3f}" if "phi" in params else "",
        f"{params['alpha']:.3f}",
        f"{params['beta']:.3f}",
        f"{params['E']:.3f}",
        f"{params['A']:.4g}",
        f"{params['B']:.4g}",
        f"{fit.objective:.4g}",
        f"{fit.r2:.4f}",
        f"{fit.starts.at_optimum} of {fit.starts.n}{edge}",
    )


def _residuals(study: Study) -> Iterator[str]:
    yield "residuals of the fitted law, measured − predicted, nats"
    rows = [_error_row(f"r = {r:g}", errors) for r, errors in study.residuals.items()]
    yield from table_text(ERROR_HEADER, rows)


def _error_row(name: str, errors: Errors) -> tuple[str, ...]:
    return (
        name,
        f"{errors.n}",
        f"{errors.mean:+.3f}",
        f"{errors.max_abs:.3f}",
        f"{errors.rmse:.3f}",
    )


def _stability(study: Study) -> Iterator[str]:
    if study.injection_sensitivity is not None:
        phis = ", ".join(
            f"{choice} {_number(phi)}" for choice, phi in study.injection_sensitivity.items()
        )
        yield f"φ by booking of the injection matrix: {phis}"
    if study.halves is not None:
        parts = [
            f"{name} {'—' if half is None else _phi(half.fit)}"
            for name, half in study.halves.items()
        ]
        yield f"φ by half of the budgets: {', '.join(parts)}"
    for by, parts_by in (study.leave_one_out or {}).items():
        shown = [
            f"{value:g}: {'—' if part is None else f'{_phi(part.fit)} ({part.errors.rmse:.3f})'}"
            for value, part in parts_by.items()
        ]
        yield f"φ without one {by} (RMSE on the runs left out, nats): {', '.join(shown)}"
    if study.holdout is not None:
        held = study.holdout
        budgets = ", ".join(f"{value:g}" for value in held.values)
        e = held.errors
        yield (
            f"held out, budget {budgets}: {e.n} runs, mean error {e.mean:+.4f}, "
            f"RMSE {e.rmse:.4f}, largest {e.max_abs:.4f} nats"
        )


def _phi(fit: FitResult) -> str:
    return _number(fit.params["phi"])


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"


def _notes(study: Study) -> Iterator[str]:
    dropped = [f"{run.run}: {run.reason}" for run in study.table.dropped]
    for title, lines in (("dropped", dropped), ("warnings", study.warnings)):
        if lines:
            yield f"{title}:"
            yield from (f"  {line}" for line in lines[:MAX_LISTED])
            if len(lines) > MAX_LISTED:
                yield f"  … {len(lines) - MAX_LISTED} more in fit.json"


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns: the first to the left, the others to the right; short rows span the rest."""
    full = [row for row in rows if len(row) == len(header)]
    widths = [max(len(row[i]) for row in [header, *full]) for i in range(len(header))]
    widths[0] = max(widths[0], *(len(row[0]) for row in rows)) if rows else widths[0]

    def line(row: Sequence[str]) -> str:
        first = row[0].ljust(widths[0])
        if len(row) < len(header):
            return "  ".join([first, *row[1:]]).rstrip()
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join([first, *cells]).rstrip()

    return [line(header), *(line(row) for row in rows)]
