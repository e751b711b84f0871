"""``fit.json``: a study's results for other programs, at full precision, every key always there."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from analysis.page.table import plain
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
    fit, answer = study.fit, study.answer
    return plain(
        {
            "schema": SCHEMA,
            "law": study.settings.law,
            "injection": study.table.injection,
            "n_runs": len(study.table),
            "n_dropped": len(study.table.dropped),
            "dropped": study.table.dropped,
            "params": {"phi": None, **fit.params},
            "objective": fit.objective,
            "delta": fit.law.delta,
            "r2": fit.r2,
            "rmse": fit.rmse,
            "max_abs_residual": fit.max_abs_residual,
            "restricted": _each(study.restricted, _fit),
            "per_architecture": _each(study.per_architecture, _fit),
            "residuals": _each(study.residuals),
            "halves": _each(study.halves, _half),
            "injection_sensitivity": study.injection_sensitivity,
            "bootstrap": study.bootstrap and _bootstrap(study.bootstrap, fit),
            "starts": fit.starts,
            "warnings": study.warnings,
            "provenance": provenance,
            "phi_fixed": study.settings.phi,
            "free": fit.free,
            "converged": fit.converged,
            "at_bounds": fit.at_bounds,
            "condition": fit.condition,
            "leave_one_out": _each(study.leave_one_out, lambda parts: _each(parts, _left_out)),
            "holdout": study.holdout and _left_out(study.holdout),
            "planned": study.planned,
            "local": study.local and _local(study.local),
            "answer": answer
            and {**asdict(answer), "sentence": in_words(answer, study.table.runs, study.planned)},
        }
    )


def _each(
    parts: Mapping[Any, Any] | None, convert: Callable[[Any], Any] = lambda part: part
) -> dict[str, Any] | None:
    """Parts by their name, or by a number such as r; null where there is none."""
    if parts is None:
        return None
    return {
        name if isinstance(name, str) else f"{name:g}": None if part is None else convert(part)
        for name, part in parts.items()
    }


def _fit(fit: FitResult) -> dict[str, Any]:
    return {
        **fit.params,
        "objective": fit.objective,
        "r2": fit.r2,
        "rmse": fit.rmse,
        "n": fit.n_runs,
        "starts": fit.starts,
        "at_bounds": fit.at_bounds,
        "condition": fit.condition.whole,
    }


def _half(half: Half) -> dict[str, Any]:
    fit = half.fit
    return {
        "budgets": half.budgets,
        "n": fit.n_runs,
        **fit.params,
        "objective": fit.objective,
        "r2": fit.r2,
        "at_bounds": fit.at_bounds,
    }


def _left_out(part: LeftOut) -> dict[str, Any]:
    """Errors are of the runs left out (``n`` of them), parameters of the fit without them."""
    return {"left_out": part.values, **asdict(part.errors), "params": part.fit.params}


def _local(local: LocalStudy) -> dict[str, Any]:
    cells = zip(local.cells.labels, local.cells.params["phi"], strict=True)
    return {
        "phi": local.phi,
        "ci95": local.estimate.ci95,
        "se": local.estimate.se,
        "rmse": local.fit.rmse,
        "cells": len(local.cells.labels),
        "without_cell": {", ".join(f"{v:g}" for v in cell): phi for cell, phi in cells},
        "without_r": _each(local.without_r),
        "ci95_over_r": local.over_r,
        "injection": local.injection,
        "embeddings_counted": local.embeddings,
        "head_counted": local.head,
        "worth_per_r": _each(local.worth_per_r),
        "left_out_rmse": local.cells.left_out_rmse,
    }


def _bootstrap(result: Bootstrap, fit: FitResult) -> dict[str, Any]:
    intervals = {
        name: {"ci95": result.interval(name), "se": result.standard_error(name)}
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
