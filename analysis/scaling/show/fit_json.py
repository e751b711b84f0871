"""``fit.json``: a study's results for other programs, at full precision, every key always there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from analysis.scaling.answer import in_words
from analysis.scaling.bootstrap import UNIT_LABELS, Bootstrap
from analysis.scaling.fit import FitResult
from analysis.scaling.local_study import LocalStudy
from analysis.scaling.splits import Half, LeftOut
from analysis.scaling.study import Study
from analysis.tables.provenance import Provenance

SCHEMA = 2


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
        "params": {"phi": None, **fit.params},
        "objective": fit.objective,
        "delta": fit.law.delta,
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
        "planned": study.planned,
        "local": None if study.local is None else _local(study.local),
        "answer": None if study.answer is None else _answer(study),
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


def _local(local: LocalStudy) -> dict[str, Any]:
    cells = zip(local.cells.labels, local.cells.params["phi"], strict=True)
    return {
        "phi": local.phi,
        "ci95": local.estimate.ci95,
        "se": local.estimate.se,
        "rmse": local.fit.rmse,
        "cells": len(local.cells.labels),
        "without_cell": {", ".join(f"{v:g}" for v in cell): phi for cell, phi in cells},
        "without_r": {f"{r:g}": phi for r, phi in local.without_r.items()},
        "ci95_over_r": None if local.over_r is None else list(local.over_r),
        "injection": local.injection,
        "embeddings_counted": local.embeddings,
        "worth_per_r": None
        if local.worth_per_r is None
        else {f"{r:g}": worth for r, worth in local.worth_per_r.items()},
        "left_out_rmse": local.cells.left_out_rmse,
    }


def _answer(study: Study) -> dict[str, Any]:
    assert study.answer is not None
    words = in_words(study.answer, study.table.runs, study.planned)
    return {**asdict(study.answer), "sentence": words}


def _bootstrap(result: Bootstrap, fit: FitResult) -> dict[str, Any]:
    intervals = {
        name: {"ci95": list(result.interval(name)), "se": result.standard_error(name)}
        if fit.is_free(name)
        else None
        for name in fit.params
    }
    return {
        "unit": UNIT_LABELS[result.unit],
        "n_cells": result.n_blocks,
        "resamples": len(result.estimates),
        "phi": None,
        **intervals,
        "accepted": len(result.accepted),
        "missed": result.missed,
        "unidentified": result.unidentified,
        "at_bounds": result.at_bounds,
    }
