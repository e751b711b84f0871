"""How the injection matrix is counted, and the array type that all of the analysis uses."""

from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import AnalysisError

Injection = Literal["once", "recurrent", "excluded"]
INJECTIONS: tuple[Injection, ...] = get_args(Injection)

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def book_injection(frame: pd.DataFrame, choice: Injection) -> pd.DataFrame:
    """Count the injection matrix under ``n_once``, under ``n_rec``, or leave it out.

    The injection runs in every recurrence but only maps the prelude's output into the loop, so
    either count can be argued, and the fitted φ depends on it. The returned copy holds float64
    ``n_once`` and ``n_rec`` as the law uses them and ``n_inject`` = 0: counting twice is harmless.
    """
    if choice not in INJECTIONS:
        raise AnalysisError(f"injection {choice!r}: choose one of {', '.join(INJECTIONS)}")
    n_inject = frame["n_inject"].astype(np.float64)
    return frame.assign(
        n_once=frame["n_once"].astype(np.float64) + (n_inject if choice == "once" else 0.0),
        n_rec=frame["n_rec"].astype(np.float64) + (n_inject if choice == "recurrent" else 0.0),
        n_inject=0.0,
    )
