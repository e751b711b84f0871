"""The scaling laws, as functions of parameter counts and tokens, without any fitting.

All losses are in nats, all counts in parameters and tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.errors import AnalysisError

Injection = Literal["once", "recurrent", "excluded"]
INJECTIONS: tuple[Injection, ...] = get_args(Injection)

FloatArray = NDArray[np.float64]


def book_injection(frame: pd.DataFrame, choice: Injection) -> pd.DataFrame:
    """Count the injection matrix under ``n_once``, under ``n_rec``, or leave it out.

    The injection runs in every recurrence but only maps the prelude's output into the loop, so
    either booking can be argued, and the fitted φ depends on it. The returned copy holds float64
    ``n_once`` and ``n_rec`` as the law uses them and ``n_inject`` = 0: booking twice is harmless.
    """
    if choice not in INJECTIONS:
        raise AnalysisError(f"injection {choice!r}: choose one of {', '.join(INJECTIONS)}")
    n_inject = frame["n_inject"].astype(np.float64)
    return frame.assign(
        n_once=frame["n_once"].astype(np.float64) + (n_inject if choice == "once" else 0.0),
        n_rec=frame["n_rec"].astype(np.float64) + (n_inject if choice == "recurrent" else 0.0),
        n_inject=0.0,
    )


@dataclass(frozen=True)
class ChinchillaLaw:
    """L = E + A·N^−α + B·D^−β (Hoffmann et al. 2022, arXiv:2203.15556, equation 2)."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def predict(self, n: ArrayLike, tokens: ArrayLike) -> FloatArray:
        """Loss in nats for ``n`` parameters and ``tokens`` training tokens (broadcast)."""
        return np.asarray(
            self.E + self.A * _float(n) ** -self.alpha + self.B * _float(tokens) ** -self.beta
        )

    def params(self) -> dict[str, float]:
        """The parameters by name, in the order reports use."""
        return asdict(self)


@dataclass(frozen=True)
class JointLaw:
    """L = E + A·(N_once + r^φ·N_rec)^−α + B·D^−β (arXiv:2604.21106).

    φ says what recurrences are worth in parameters: 0, nothing; 1, as much as unshared layers.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    phi: float

    def n_effective(self, n_once: ArrayLike, n_rec: ArrayLike, r: ArrayLike) -> FloatArray:
        """Effective parameters N_once + r^φ·N_rec (the injection already booked)."""
        return np.asarray(_float(n_once) + _float(r) ** self.phi * _float(n_rec))

    def predict(
        self, n_once: ArrayLike, n_rec: ArrayLike, r: ArrayLike, tokens: ArrayLike
    ) -> FloatArray:
        """Loss in nats; the arguments broadcast."""
        return self.chinchilla.predict(self.n_effective(n_once, n_rec, r), tokens)

    def predict_frame(self, booked: pd.DataFrame) -> FloatArray:
        """Loss in nats for every row of a booked table (see :func:`book_injection`)."""
        return self.predict(booked["n_once"], booked["n_rec"], booked["r"], booked["tokens"])

    @property
    def chinchilla(self) -> ChinchillaLaw:
        """The same law as a function of effective parameters and tokens."""
        return ChinchillaLaw(self.E, self.A, self.B, self.alpha, self.beta)

    def params(self) -> dict[str, float]:
        """The parameters by name, in the order reports use."""
        return {
            "phi": self.phi,
            "alpha": self.alpha,
            "beta": self.beta,
            "E": self.E,
            "A": self.A,
            "B": self.B,
        }


def _float(x: ArrayLike) -> FloatArray:
    # Integer counts overflow in products and powers; every law works in float64.
    return np.asarray(x, dtype=np.float64)
