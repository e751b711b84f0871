"""Tables that are too long for summary.json: Parquet files in the run folder, replaced whole."""

from pathlib import Path

import jax
import numpy as np
import pandas as pd

from looped_jax.files import replacing


def list_column(values_RN: np.ndarray) -> list[np.ndarray]:
    """A column whose cell n is the list over rows (R,) of token n."""
    return list(np.ascontiguousarray(values_RN.T))


def write_parquet(path: Path, table: pd.DataFrame) -> None:
    """Writes a table under its final name when it is complete; process 0 of a run does."""
    if jax.process_index() == 0:
        with replacing(path) as file:
            table.to_parquet(file, compression="zstd", index=False)
