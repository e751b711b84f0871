"""One recurrence: injection -> core layers -> state norm, and the lanes of hyperconnections."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.model.attention import Context
from looped_jax.model.config import ModelConfig
from looped_jax.model.injections import INJECTIONS
from looped_jax.model.layers import RMSNorm, layer_stack, parameter, run_stack

Array = jax.Array
Angles = tuple[Array, Array] | None


class Recurrence(nn.Module):
    """One recurrence of the loop, and how a state begins and is read.

    The state is (B, T, D), or (K, B, T, D) lanes with hyperconnections.
    """

    config: ModelConfig
    deterministic: bool = True

    def setup(self) -> None:
        c = self.config
        self._core = layer_stack(c, c.core_layers, deterministic=self.deterministic, name="core")
        if c.injection in INJECTIONS:
            self._inject = INJECTIONS[c.injection](c, name="injection")
        elif c.injection == "hyperconnect":
            self._lanes = Lanes(c, name="lanes")
        if c.state_norm != "none":
            self.state_norm = RMSNorm(c.norm_epsilon, name="state_norm")

    def initial(self, input_BTD: Array, key: Array | None) -> Array:
        """h⁰ from the prelude's output e: e, zeros or truncated normal noise; lanes (e, …, e).

        Raises:
          ValueError: the model starts from noise and no key was given.
        """
        c = self.config
        if c.injection == "hyperconnect":
            return jnp.broadcast_to(input_BTD[None], (c.lanes, *input_BTD.shape))
        if c.initial_state == "input":
            return input_BTD
        if c.initial_state == "zeros":
            return jnp.zeros_like(input_BTD)
        if key is None:
            raise ValueError("model.initial_state = 'noise' needs a random key ('state' rng)")
        noise = jax.random.truncated_normal(key, -3.0, 3.0, input_BTD.shape, jnp.float32)
        return (c.initial_state_std * noise).astype(input_BTD.dtype)

    def __call__(self, state: Array, input_BTD: Array, angles: Angles, index: Array) -> Array:
        y_BTD = self.core(self.inject(state, input_BTD, index), angles)
        return self.absorb(state, y_BTD, index)

    def inject(self, state: Array, input_BTD: Array, index: Array) -> Array:
        """What the core is given, (B, T, D), of the state and the prelude's output."""
        c = self.config
        if c.injection == "hyperconnect":
            alpha, _, _ = self._lanes(index, state.dtype)
            return jnp.sum(alpha * state, axis=0)
        if c.state_norm == "between":
            # What the recurrence before left and the readout has seen; the first one takes h⁰.
            is_later = jnp.reshape(index > 0, (-1, 1, 1))
            state = jnp.where(is_later, self.state_norm(state), state)
        if c.injection == "passthrough":
            return state
        if c.injection == "additive":
            return state + input_BTD
        return self._inject(state, input_BTD)

    def core(self, x_BTD: Array, angles: Angles, context: Context | None = None) -> Any:
        """The core's layers (B, T, D); see `layers.run_stack`."""
        return run_stack(self._core, self.config.core_layers, x_BTD, angles, context)

    def absorb(self, state: Array, y_BTD: Array, index: Array) -> Array:
        """The new state, of the one before and the core's output."""
        if self.config.state_norm == "every":
            y_BTD = self.state_norm(y_BTD)
        if self.config.injection != "hyperconnect":
            return y_BTD
        _, mixing, beta = self._lanes(index, state.dtype)
        return jnp.sum(mixing * state[None], axis=1) + beta * y_BTD[None]

    def read(self, state: Array) -> Array:
        """What the coda reads, (B, T, D): Σ lanes, or the state, normalised if only the last is."""
        if self.config.injection == "hyperconnect":
            return jnp.sum(state, axis=0)
        return self.state_norm(state) if self.config.state_norm == "last" else state


class Lanes(nn.Module):
    """Per-recurrence lane parameters: α_i reads, M_i mixes, β_i writes.

    α_i = e_{i mod K}, M_i = I, β_i = 1 at the start (arXiv:2604.21106).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, index: Array, dtype: jnp.dtype) -> tuple[Array, Array, Array]:
        """α (K, b, 1, 1), M (K, K, b, 1, 1), β (K, b, 1, 1); b = 1, or B with index (B,)."""
        R, K = self.config.recurrences, self.config.lanes
        tables = {
            "alpha": ((R, K), lambda *_: jnp.eye(K)[jnp.arange(R) % K]),
            "mixing": ((R, K, K), lambda *_: jnp.tile(jnp.eye(K), (R, 1, 1))),
            "beta": ((R, K), lambda *_: jnp.ones((R, K))),
        }
        axes = ("recurrences", "lanes", "lanes_in")
        rows = []
        for name, (shape, init) in tables.items():
            table = parameter(self, name, init, shape, axes[: len(shape)])
            row = jnp.take(table, jnp.atleast_1d(index), axis=0, mode="clip").astype(dtype)
            rows.append(jnp.moveaxis(row, 0, -1)[..., None, None])
        return rows[0], rows[1], rows[2]
