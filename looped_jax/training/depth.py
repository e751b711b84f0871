"""How many recurrences a step runs: fixed, log-normal Poisson or uniform, per step or per sequence.

A draw is a function of (seed, step) inside the compiled step: the same on every host and after a
resume, with nothing to broadcast. The configured mean is the mean of what is drawn. (The recipe of
arXiv:2502.05171 draws Poisson(rate) + 1 with rates of mean m, hence m + 1 before clipping.)
"""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.errors import UserError
from looped_jax.model.fields import Count, Positive, PositiveOrZero

KINDS = ("fixed", "lognormal_poisson", "uniform")
SCOPES = ("step", "sequence")

# Separates the depths' random numbers from others that are drawn from the same seed and step.
STREAM = 0x6C6F6F70  # "loop" in ASCII

# Standard normal nodes for E over the log-normal rate: the trapezoid rule converges geometrically.
NODES = np.linspace(-9.0, 9.0, 721)
NODE_WEIGHTS = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))


@dataclass(frozen=True)
class DepthConfig:
    """The distribution of the number of recurrences r.

    Raises UserError, naming the field, if the fields do not fit together.
    """

    kind: Literal["fixed", "lognormal_poisson", "uniform"]
    per: Literal["step", "sequence"]  # one draw for the whole batch, or one for each sequence
    mean: Positive  # E[r] of what is drawn, after clipping
    sigma: PositiveOrZero  # of log rate, lognormal_poisson only: 0 is a plain shifted Poisson
    minimum: Count  # r lies in [minimum, maximum]; the compiled step holds up to maximum states
    maximum: Count

    def __post_init__(self):
        if self.kind not in KINDS:
            raise UserError(f"depth.kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        if self.per not in SCOPES:
            raise UserError(f"depth.per is {self.per!r}; allowed: {', '.join(SCOPES)}")
        if self.minimum < 1:
            raise UserError(f"depth.minimum is {self.minimum}; at least 1 recurrence is needed")
        if self.maximum < self.minimum:
            raise UserError(
                f"depth.maximum is {self.maximum}; at least depth.minimum = {self.minimum}"
            )
        if self.kind == "fixed" and not self.mean == self.minimum == self.maximum:
            raise UserError(
                f"depth.mean is {self.mean}; for a fixed depth depth.minimum = {self.minimum} "
                f"and depth.maximum = {self.maximum} have to equal it"
            )
        if self.kind == "uniform" and self.mean != (self.minimum + self.maximum) / 2:
            raise UserError(
                f"depth.mean is {self.mean}; uniform on [{self.minimum}, {self.maximum}] has "
                f"mean {(self.minimum + self.maximum) / 2}"
            )
        if self.kind == "lognormal_poisson":
            if self.sigma < 0:
                raise UserError(f"depth.sigma is {self.sigma}; at least 0")
            if not self.minimum < self.mean < self.maximum:
                raise UserError(
                    f"depth.mean is {self.mean}; after clipping to [{self.minimum}, "
                    f"{self.maximum}] only a mean strictly between the two can be reached"
                )


class DepthSampler:
    """Draws numbers of recurrences; `location` is log E[rate] of the log-normal Poisson."""

    def __init__(self, config: DepthConfig):
        self.config = config
        self.location = _solve_location(config) if config.kind == "lognormal_poisson" else None

    def sample(self, seed: jax.Array | int, step: jax.Array | int, batch: int) -> jax.Array:
        """Number of recurrences at a step, int32: () per step, (batch,) per sequence.

        Both `seed` and `step` may be traced.
        """
        c = self.config
        shape = () if c.per == "step" else (batch,)
        if c.kind == "fixed":
            return jnp.full(shape, c.minimum, jnp.int32)
        # Poisson draws need threefry, whatever the process's default generator is.
        key = jax.random.key(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, STREAM), step)
        if c.kind == "uniform":
            return jax.random.randint(key, shape, c.minimum, c.maximum + 1, jnp.int32)
        assert self.location is not None
        rate_key, count_key = jax.random.split(key)
        z = jax.random.normal(rate_key, shape, jnp.float32)
        rate = jnp.exp(self.location - c.sigma**2 / 2 + c.sigma * z)
        count = jax.random.poisson(count_key, rate, shape, jnp.int32)
        return jnp.clip(count + 1, c.minimum, c.maximum)

    def distribution(self) -> tuple[np.ndarray, np.ndarray]:
        """(depths minimum … maximum, their probabilities), float64, exact up to quadrature."""
        c = self.config
        depths = np.arange(c.minimum, c.maximum + 1)
        if c.kind != "lognormal_poisson":
            return depths, np.full(len(depths), 1.0 / len(depths))
        assert self.location is not None
        above = _survival(self.location, c.sigma, depths[:-1])
        return depths, -np.diff(np.concatenate([[1.0], above, [0.0]]))


def _survival(location: float, sigma: float, depths: np.ndarray) -> np.ndarray:
    """P(Poisson(rate) + 1 > depth), rate ~ LogNormal(location − σ²/2, σ), for depths ≥ 1."""
    rates = np.exp(location - sigma**2 / 2 + sigma * NODES)
    from scipy.special import gammainc  # half a second to import, and most runs draw no depth

    # P(Poisson(rate) ≥ k) is the regularised lower incomplete gamma function P(k, rate).
    return gammainc(depths[:, None], rates[None, :]) @ NODE_WEIGHTS


def _solve_location(config: DepthConfig) -> float:
    """The location at which E[clip(Poisson(rate) + 1, minimum, maximum)] is the configured mean."""
    from scipy.optimize import brentq

    depths = np.arange(config.minimum, config.maximum)

    def excess(location: float) -> float:
        return config.minimum + _survival(location, config.sigma, depths).sum() - config.mean

    # The mean rises with the location, from the minimum to the maximum.
    low, high = math.log(config.mean), math.log(config.mean)
    while excess(low) > 0:
        low -= 1.0
    while excess(high) < 0:
        high += 1.0
        # A float32 rate above 1e9 draws counts that no int32 holds.
        if high > math.log(1e9) - 6 * config.sigma:
            raise UserError(
                f"depth.mean is {config.mean}; clipped to [{config.minimum}, {config.maximum}] "
                f"at depth.sigma = {config.sigma} it cannot be reached"
            )
    return float(brentq(excess, low, high, xtol=1e-12)) if low < high else low
