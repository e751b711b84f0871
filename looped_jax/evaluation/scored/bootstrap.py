"""Uncertainty of measurements on text: a bootstrap over documents, or windows where those are few.

Tokens of one document are not independent, so whole documents are drawn. With fewer than
MIN_DOCUMENTS the windows of T tokens stand for them; results name the unit.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from looped_jax.evaluation.scored.windows import ScoredText

MIN_DOCUMENTS = 20


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with the standard deviation and the 95 % percentile interval of its resamples."""

    value: float
    standard_error: float
    ci95: tuple[float, float]

    @classmethod
    def of(cls, value: float, resampled: np.ndarray) -> "Estimate":
        """From the value on the text itself and those on the resamples (NaN where undefined).

        Resamples without a value are left out; without a value on the text there is no interval.
        """
        kept = resampled[np.isfinite(resampled)]
        if len(kept) < 2 or not np.isfinite(value):
            return cls(float(value), float("nan"), (float("nan"), float("nan")))
        low, high = np.percentile(kept, [2.5, 97.5])
        return cls(float(value), float(np.std(kept, ddof=1)), (float(low), float(high)))

    def to_json(self) -> dict[str, Any]:
        """None where there is no number."""
        finite = lambda x: x if np.isfinite(x) else None
        return {
            "value": finite(self.value),
            "standard_error": finite(self.standard_error),
            "ci95": [finite(bound) for bound in self.ci95],
        }


class Bootstrap:
    """Resamples of the units of a text; one set serves all measurements, so they stay paired.

    Attributes:
      unit: "document" or "window".
      weights_SU: how often each unit is drawn in each resample.
    """

    def __init__(self, text: ScoredText, resamples: int, seed: int):
        documents = len(np.unique(text.document))
        self.unit = "document" if documents >= MIN_DOCUMENTS else "window"
        _, self._unit_N = np.unique(getattr(text, self.unit), return_inverse=True)
        self.units = int(self._unit_N.max()) + 1
        self.resamples, self.seed = resamples, seed
        equal = np.full(self.units, 1 / self.units)
        generator = np.random.default_rng(seed)
        self.weights_SU = generator.multinomial(self.units, equal, size=resamples).astype(float)

    def describe(self) -> dict[str, Any]:
        """How the intervals were made, for the summary."""
        return {
            "unit": self.unit,
            "units": self.units,
            "resamples": self.resamples,
            "seed": self.seed,
        }

    def sums(self, values_N: np.ndarray) -> np.ndarray:
        """Sum over the tokens of each unit, float64: (…, N) -> (…, U)."""
        values = np.asarray(values_N, np.float64)
        flat = values.reshape(-1, values.shape[-1])
        out = np.stack([np.bincount(self._unit_N, row, self.units) for row in flat])
        return out.reshape(*values.shape[:-1], self.units)

    def means(self, values_N: np.ndarray, of_N: np.ndarray | None = None) -> np.ndarray:
        """Means over tokens, of the text first and then of each resample: (…, N) -> (…, 1 + S).

        `of_N` is true for the tokens that count; None for all. Where a resample has none, NaN.
        """
        keep = np.ones(len(self._unit_N)) if of_N is None else np.asarray(of_N, np.float64)
        sums, counts = self.sums(np.asarray(values_N) * keep), self.sums(keep)
        return self.ratio(sums, counts)

    def ratio(self, above_U: np.ndarray, below_U: np.ndarray) -> np.ndarray:
        """Σ above / Σ below over units, of the text and of each resample: (…, U) -> (…, 1 + S)."""
        weights_US = np.concatenate([np.ones((1, self.units)), self.weights_SU]).T
        below = below_U @ weights_US
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(below > 0, above_U @ weights_US / below, np.nan)

    def medians(self, values_N: np.ndarray, resamples: int = 200) -> np.ndarray:
        """Medians, of the text first and then of the first so many resamples: (1 + S,)."""
        order = np.argsort(values_N)
        ranked = np.asarray(values_N, np.float64)[order]
        out = []
        for weights_N in self.token_weights(resamples):
            cumulative = np.cumsum(weights_N[order])
            out.append(ranked[np.searchsorted(cumulative, cumulative[-1] / 2)])
        return np.asarray(out)

    def token_weights(self, resamples: int) -> Iterator[np.ndarray]:
        """How often each token counts (N,): once in the text, then as the resamples draw it."""
        yield np.ones(len(self._unit_N))
        for weights_U in self.weights_SU[:resamples]:
            yield weights_U[self._unit_N]


def estimate(values_S: np.ndarray) -> Estimate:
    """An Estimate from (1 + S,) values, the text's own first."""
    return Estimate.of(values_S[0], values_S[1:])


def estimates(values_RS: np.ndarray) -> list[dict[str, Any]]:
    """The JSON of an Estimate for each row."""
    return [estimate(row).to_json() for row in values_RS]
