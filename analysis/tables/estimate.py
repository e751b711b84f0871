"""A number with its uncertainty."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from analysis.laws.counting import FloatArray
from analysis.page.numbers import shown

#: Half widths of a 95 % interval in standard errors.
Z95 = 1.96


@dataclass(frozen=True)
class Estimate:
    """A value with the standard deviation and central 95 % of its resamples (None without any)."""

    value: float
    se: float | None
    ci95: tuple[float, float] | None

    @staticmethod
    def normal(value: float, se: float) -> "Estimate":
        """With the interval of a normal distribution."""
        return Estimate(value, se, (value - Z95 * se, value + Z95 * se))

    def text(self, digits: int = 3) -> str:
        """The value and its interval with so many decimals; what they would hide as 1.2e-06."""
        return shown(self, f".{digits}f")


@dataclass(frozen=True)
class Draws:
    """The parameters of a law over changed runs: a bootstrap's resamples, or without each block.

    ``params`` has one row a resample (or a block left out), one column a parameter.
    """

    params: pd.DataFrame
    jackknife: bool = False

    def ends(self, value: ArrayLike, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The 95 % interval of a value (…) from its values (S, …) over the draws.

        Central 95 % of the resamples; for the jackknife of G blocks, ± t(G − 1) standard errors.
        """
        if not self.jackknife:
            low, high = np.nanpercentile(values, [2.5, 97.5], axis=0)
            return low, high
        reach = stats.t.ppf(0.975, len(values) - 1) * self.standard_error(values)
        return np.asarray(value) - reach, np.asarray(value) + reach

    def standard_error(self, values: FloatArray) -> FloatArray:
        """Of a function of the parameters, from its values (S, …)."""
        n = len(values)
        spread = np.nanstd(values, axis=0, ddof=1)
        return np.asarray(spread * (n - 1) / np.sqrt(n) if self.jackknife else spread)

    def estimate(self, value: float, values: FloatArray) -> Estimate:
        """A value with its interval; draws without one (nan) are left out."""
        if np.isfinite(values).sum() < 2:
            return Estimate(value, None, None)
        low, high = self.ends(value, values)
        return Estimate(value, float(self.standard_error(values)), (float(low), float(high)))


def estimate(values: FloatArray, draws: Draws | None = None) -> Estimate:
    """From the value itself and then its values over the draws (1 + S,), resamples if not given."""
    return (draws or Draws(pd.DataFrame())).estimate(float(values[0]), values[1:])
