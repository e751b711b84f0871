"""Parabolas and allocation as JSON: full precision, every key always there."""

from collections.abc import Sequence
from typing import Any

from analysis.page.table import plain
from analysis.scaling.allocation import Allocation
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
        "curves": plain(list(curves)),
        "exponents": [plain(each) | {"sum": each.total} for each in exponents],
        "provenance": provenance.to_json(),
    }


def allocation_json(allocation: Allocation, provenance: Provenance) -> dict[str, Any]:
    """What ``allocation.json`` holds."""
    return {
        "schema": SCHEMA,
        "definition": "minimum of the fitted law under the exact FLOPs per token",
        **plain(allocation),
        "provenance": provenance.to_json(),
    }
