"""Where a result came from: enough to make it again."""

import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy
import pandas
import scipy

from analysis.tables.runs import RunTable


@dataclass(frozen=True)
class Provenance:
    """Input and its digest, library versions, seed, the command typed, and when (UTC)."""

    input: str
    sha256: str
    versions: dict[str, str]
    seed: int
    command: str | None
    time: str

    def to_json(self) -> dict[str, Any]:
        """For ``fit.json`` and its like."""
        return asdict(self)


def provenance(table: RunTable, *, seed: int, command: str | None) -> Provenance:
    """Of a result computed now from ``table``; ``command`` is null when called from Python."""
    return Provenance(
        input=str(table.source),
        sha256=table.sha256,
        versions={
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
            "pandas": pandas.__version__,
        },
        seed=seed,
        command=command,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
