"""The next token from logits: greedy, temperature, top-k, top-p. All knobs are traced numbers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.errors import UserError

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
      temperature: divides the logits; 0 always takes the most likely token.
      top_k: only the k most likely tokens may be drawn; 0 for all.
      top_p: only the most likely tokens that together reach this probability, after top_k.
      seed: row i of a batch draws as seed + i alone would.

    Raises:
      UserError: a number that is not allowed.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise UserError(f"temperature = {self.temperature}; allowed: 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top_k = {self.top_k}; allowed: 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p = {self.top_p}; allowed: above 0, up to 1")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed = {self.seed}; allowed: 0 to {2**31 - 1}")

    def knobs(self) -> "Knobs":
        return Knobs(jnp.float32(self.temperature), jnp.int32(self.top_k), jnp.float32(self.top_p))

    def keys(self, rows: Sequence[int]) -> Array:
        """A random key for each of these rows of a batch, (rows,)."""
        seeds = jnp.uint32(self.seed) + jnp.asarray(rows, jnp.uint32)
        return jax.vmap(jax.random.key)(seeds)


class Knobs(NamedTuple):
    """What of a Sampling a compiled step is given."""

    temperature: Array
    top_k: Array
    top_p: Array


@dataclasses.dataclass(frozen=True)
class Chooser:
    """Draws tokens among the ids below `known_ids`; equal ones are one compiled program."""

    known_ids: int

    def __call__(self, logits_BV: Array, position_B: Array, keys_B: Array, knobs: Knobs) -> Array:
        """The tokens (B,) at these positions of their texts; keys are those of the rows."""
        is_known_V = jnp.arange(logits_BV.shape[-1]) < self.known_ids
        logits_BV = jnp.where(is_known_V[None], logits_BV, jnp.float32(-jnp.inf))
        return next_token(logits_BV, jax.vmap(jax.random.fold_in)(keys_B, position_B), knobs)


def next_token(logits_BV: Array, keys_B: Array, knobs: Knobs) -> Array:
    """Draws a token for each row, int32 (B,); tokens with logit -inf are never drawn."""
    greedy = lambda logits_BV: jnp.argmax(logits_BV, -1).astype(jnp.int32)

    def drawn(logits_BV):
        scaled_BV = logits_BV / knobs.temperature
        filters = (knobs.top_k > 0) | (knobs.top_p < 1)
        kept_BV = jax.lax.cond(filters, lambda x: _filtered(x, knobs), lambda x: x, scaled_BV)
        return jax.vmap(jax.random.categorical)(keys_B, kept_BV).astype(jnp.int32)

    return jax.lax.cond(knobs.temperature > 0, drawn, greedy, logits_BV)


def _filtered(logits_BV: Array, knobs: Knobs) -> Array:
    """Logits with -inf where top_k and then top_p leave out; equals of the last kept stay."""
    V = logits_BV.shape[-1]
    hidden = jnp.float32(-jnp.inf)
    sorted_BV = jnp.sort(logits_BV, axis=-1, descending=True)
    count = jnp.where(knobs.top_k > 0, jnp.minimum(knobs.top_k, V), V)
    sorted_BV = jnp.where(jnp.arange(V)[None] < count, sorted_BV, hidden)
    p_BV = jax.nn.softmax(sorted_BV, axis=-1)
    before_BV = jnp.cumsum(p_BV, axis=-1) - p_BV
    # The most likely token always stays.
    stays_BV = (before_BV < knobs.top_p) & (sorted_BV > hidden)
    least_B1 = jnp.min(jnp.where(stays_BV, sorted_BV, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits_BV >= least_B1, logits_BV, hidden)
