"""A study's results as text for the terminal; three to four digits, the rest is in ``fit.json``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from analysis.scaling.answer import in_words
from analysis.scaling.bootstrap import UNIT_LABELS
from analysis.scaling.fit import FitResult
from analysis.scaling.splits import Errors
from analysis.scaling.study import Study

ERROR_HEADER = ("", "runs", "mean", "max |·|", "RMSE")
MAX_LISTED = 12


def summary(study: Study) -> str:
    """The whole summary."""
    return "\n".join(
        line
        for part in (
            _answer(study),
            _heading(study),
            _parameters(study),
            _fits(study),
            _residuals(study),
            _stability(study),
            _local(study),
            _notes(study),
        )
        for line in [*part, ""]
    ).rstrip()


def _answer(study: Study) -> Iterator[str]:
    if study.answer is not None:
        words = in_words(study.answer, study.table.runs, study.planned)
        yield from textwrap.wrap(words, 100)
        yield from textwrap.wrap(f"Why the {study.answer.law} law: {study.answer.why}.", 100)


def _local(study: Study) -> Iterator[str]:
    local = study.local
    if local is None:
        return
    low, high = local.ci95
    yield (
        f"local law: φ = {local.phi:.3f} [{low:.3f}, {high:.3f}] over {len(local.cells.labels)} "
        f"(budget, r) cells, RMSE {local.fit.rmse:.4f} nats"
    )
    without = [f"{r:g}: {_number(phi)}" for r, phi in local.without_r.items()]
    over_r = ""
    if local.over_r is not None:
        over_r = f"; [{local.over_r[0]:.2f}, {local.over_r[1]:.2f}] if r, not cells, were drawn"
    yield f"  φ without one r: {', '.join(without)}{over_r}"
    counted = {f"injection {choice}": phi for choice, phi in local.injection.items()}
    counted["embeddings in N_once"] = local.embeddings
    told = [f"{how} {_number(phi)}" for how, phi in counted.items() if phi is not None]
    yield f"  φ by what is counted: {', '.join(told)}"
    if local.worth_per_r is not None:
        worth = [f"{r:g}: {value:.2f}" for r, value in local.worth_per_r.items()]
        yield f"  φ if each r had a worth of its own, r^φ for it alone: {', '.join(worth)}"


def _heading(study: Study) -> Iterator[str]:
    table = study.table
    yield f"{study.fit.law.title}: {study.fit.law.formula}"
    yield (
        f"{len(table)} runs from {table.source}, {len(table.dropped)} dropped; "
        f"injection matrix booked: {table.injection}"
    )


def _parameters(study: Study) -> Iterator[str]:
    fit, resampled = study.fit, study.bootstrap
    rows = []
    for name, value in fit.params.items():
        free = fit.is_free(name)
        interval, error = "held fixed" if not free else "", ""
        if free and resampled is not None:
            low, high = resampled.interval(name)
            interval, error = f"[{low:.4g}, {high:.4g}]", f"{resampled.standard_error(name):.2g}"
        rows.append((fit.law.symbols[name], f"{value:.4g}", interval, error))
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
    symbols = study.fit.law.symbols
    header = ("", "runs", *symbols.values(), "objective", "R²", "starts agreeing")
    yield from table_text(header, [_fit_row(name, fit, list(symbols)) for name, fit in fits])


def _fit_row(name: str, fit: FitResult | None, names: Sequence[str]) -> tuple[str, ...]:
    if fit is None:
        return (name, "not available, see warnings")
    edge = " (at bound: " + ", ".join(fit.at_bounds) + ")" if fit.at_bounds else ""
    return (
        name,
        f"{fit.n_runs}",
        *(f"{fit.params[n]:.4g}" if n in fit.params else "" for n in names),
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
