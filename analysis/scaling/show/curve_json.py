"""Parabolas, allocation and comparison as JSON: full precision, every key always there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from analysis.scaling.allocation import Allocation
from analysis.scaling.compare import Comparison
from analysis.scaling.fit import FitResult
from analysis.scaling.isoflop import Exponents, IsoFlopCurve
from analysis.tables.provenance import Provenance

SCHEMA = 1


def isoflop_json(
    curves: Sequence[IsoFlopCurve], exponents: Sequence[Exponents], provenance: Provenance
) -> dict[str, Any]:
    """What ``isoflop.json`` holds; a refused curve has null optima and its reason."""
    return {
        "schema": SCHEMA,
        "definition": "vertices of parabolas in ln N, N unique non-embedding parameters",
        "curves": [_plain(asdict(curve)) for curve in curves],
        "exponents": [_plain(asdict(e)) | {"sum": e.total} for e in exponents],
        "provenance": provenance.to_json(),
    }


def allocation_json(allocation: Allocation, provenance: Provenance) -> dict[str, Any]:
    """What ``allocation.json`` holds."""
    return {
        "schema": SCHEMA,
        "definition": "minimum of the fitted law under the exact FLOPs per token",
        **_plain(asdict(allocation)),
        "provenance": provenance.to_json(),
    }


def comparison_json(
    comparison: Comparison, baseline: Provenance, variant: Provenance
) -> dict[str, Any]:
    """What ``comparison.json`` holds."""
    fields = {name: getattr(comparison, name) for name in comparison.__dataclass_fields__}
    return {
        "schema": SCHEMA,
        **{name: _plain(_fields(value)) for name, value in fields.items()},
        "provenance": {"baseline": baseline.to_json(), "variant": variant.to_json()},
    }


def _fields(value: Any) -> Any:
    if isinstance(value, FitResult):
        return value.params | {"objective": value.objective, "r2": value.r2, "n": value.n_runs}
    if isinstance(value, list):
        return [_fields(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _plain(value: Any) -> Any:
    """Arrays to lists, numpy scalars to Python's, nan (no value) to null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and np.isnan(value) else value
