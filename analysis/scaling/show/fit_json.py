"""``fit.json``: a study's results for other programs, at full precision, every key always there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from analysis.scaling.bootstrap import UNIT_LABELS, Bootstrap
from analysis.scaling.fit import FitResult
from analysis.scaling.splits import Half, LeftOut
from analysis.scaling.study import Study
from analysis.tables.provenance import Provenance

SCHEMA = 1
PARAMETERS = ("phi", "alpha", "beta", "E", "A", "B")


def to_json(study: Study, provenance: Provenance) -> dict[str, Any]:
    """What ``fit.json`` holds; a part that does not apply is null, its reason in ``warnings``."""
    fit = study.fit
    return {
        "schema": SCHEMA,
        "law": study.settings.law,
        "injection": study.table.injection,
        "n_runs": len(study.table),
        "n_dropped": len(study.table.dropped),
        "dropped": [asdict(run) for run in study.table.dropped],
        "params": {name: fit.params.get(name) for name in PARAMETERS},
        "objective": fit.objective,
        "delta": fit.delta,
        "r2": fit.r2,
        "rmse": fit.rmse,
        "max_abs_residual": fit.max_abs_residual,
        "restricted": _each(study.restricted, _fit),
        "per_architecture": {
            f"{r:g}": None if part is None else _fit(part)
            for r, part in study.per_architecture.items()
        },
        "residuals": {f"{r:g}": asdict(errors) for r, errors in study.residuals.items()},
        "halves": _each(study.halves, _half),
        "injection_sensitivity": study.injection_sensitivity,
        "bootstrap": None if study.bootstrap is None else _bootstrap(study.bootstrap, fit),
        "starts": asdict(fit.starts),
        "warnings": study.warnings,
        "provenance": provenance.to_json(),
        "phi_fixed": study.settings.phi,
        "free": list(fit.free),
        "converged": fit.converged,
        "at_bounds": list(fit.at_bounds),
        "condition": asdict(fit.condition),
        "leave_one_out": None
        if study.leave_one_out is None
        else {
            by: {
                f"{value:g}": None if part is None else _left_out(part)
                for value, part in parts.items()
            }
            for by, parts in study.leave_one_out.items()
        },
        "holdout": None if study.holdout is None else _left_out(study.holdout),
    }


def _each(parts: dict[str, Any] | None, convert: Any) -> dict[str, Any] | None:
    if parts is None:
        return None
    return {name: None if part is None else convert(part) for name, part in parts.items()}


def _fit(fit: FitResult) -> dict[str, Any]:
    return {
        **fit.params,
        "objective": fit.objective,
        "r2": fit.r2,
        "rmse": fit.rmse,
        "n": fit.n_runs,
        "starts": asdict(fit.starts),
        "at_bounds": list(fit.at_bounds),
        "condition": fit.condition.whole,
    }


def _half(half: Half) -> dict[str, Any]:
    fit = half.fit
    return {
        "budgets": list(half.budgets),
        "n": fit.n_runs,
        **fit.params,
        "objective": fit.objective,
        "r2": fit.r2,
        "at_bounds": list(fit.at_bounds),
    }


def _left_out(part: LeftOut) -> dict[str, Any]:
    """Errors are of the runs left out (``n`` of them), parameters of the fit without them."""
    return {"left_out": list(part.values), **asdict(part.errors), "params": part.fit.params}


def _bootstrap(result: Bootstrap, fit: FitResult) -> dict[str, Any]:
    free = [name for name in PARAMETERS if name in fit.params and name in _free_names(fit)]
    intervals = {
        name: {"ci95": list(result.interval(name)), "se": result.standard_error(name)}
        if name in free
        else None
        for name in PARAMETERS
    }
    return {
        "unit": UNIT_LABELS[result.unit],
        "n_cells": result.n_blocks,
        "resamples": len(result.estimates),
        **intervals,
        "accepted": len(result.accepted),
        "missed": result.missed,
        "unidentified": result.unidentified,
        "at_bounds": result.at_bounds,
    }


def _free_names(fit: FitResult) -> set[str]:
    return {name.removeprefix("log_") for name in fit.free}
