"""One recurrence: injection -> core layers -> state norm, and the lanes of hyperconnections."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.model.config import ModelConfig
from looped_jax.model.layers import RMSNorm, kernel_init, layer_stack, matmul

Array = jax.Array


class LinearInjection(nn.Module):
    """u = W [e ‖ h] (arXiv:2604.21106), or W [h ‖ e] state first (arXiv:2502.05171).

    Starts as the identity on the first half ([I ‖ 0]) with init "uniform_fan_in".
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, state_BTD: Array, input_BTD: Array) -> Array:
        c = self.config
        pair = [input_BTD, state_BTD] if c.injection_order == "input_first" else [
            state_BTD, input_BTD,
        ]  # fmt: skip
        identity = lambda key, shape, dtype=jnp.float32: jnp.eye(*shape, dtype=dtype)
        init = identity if c.init == "uniform_fan_in" else kernel_init(c, 2 * c.width)
        kernel_2DD = self.param(
            "kernel",
            nn.with_logical_partitioning(init, ("inject", "embed")),
            (2 * c.width, c.width),
        )
        return matmul(jnp.concatenate(pair, axis=-1), kernel_2DD, jnp.dtype(c.compute_dtype))


class DiagonalInjection(nn.Module):
    """u = exp(-Δ a) ⊙ h + Δ ⊙ (W e), with Δ = exp(log_step), a = exp(log_decay) > 0.

    The decay lies in (0, 1) whatever is learned, so the linear part of the loop is stable
    (arXiv:2604.12946: a negative diagonal generator, discretised).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, state_BTD: Array, input_BTD: Array) -> Array:
        c = self.config
        vector = lambda name: self.param(
            name, nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)), (c.width,)
        )[None, None, :]
        step, rate = jnp.exp(vector("log_step")), jnp.exp(vector("log_decay"))
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(kernel_init(c, c.width), ("inject", "embed")),
            (c.width, c.width),
        )
        dtype = jnp.dtype(c.compute_dtype)
        written = matmul(input_BTD, kernel, dtype)
        return jnp.exp(-step * rate).astype(dtype) * state_BTD + step.astype(dtype) * written


class Recurrence(nn.Module):
    """One recurrence of the loop, and how a state begins and is read.

    The state is (B, T, D), or (K, B, T, D) lanes with hyperconnections.
    """

    config: ModelConfig
    deterministic: bool = True

    def setup(self) -> None:
        c = self.config
        self._core = layer_stack(c, c.core_layers, deterministic=self.deterministic, name="core")
        if c.injection == "linear":
            self._inject = LinearInjection(c, name="injection")
        elif c.injection == "diagonal":
            self._inject = DiagonalInjection(c, name="injection")
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

    def __call__(self, state: Array, input_BTD: Array, angles, index: Array) -> Array:
        c = self.config
        if c.injection == "hyperconnect":
            alpha_K, mixing_KK, beta_K = self._lanes(index)
            dtype = state.dtype
            x_BTD = jnp.einsum("K,KBTD->BTD", alpha_K.astype(dtype), state)
            y_BTD = self._normed(self._core(x_BTD, angles)[0])
            mixed = jnp.einsum("JK,KBTD->JBTD", mixing_KK.astype(dtype), state)
            return mixed + beta_K.astype(dtype)[:, None, None, None] * y_BTD[None]
        if c.injection == "passthrough":
            x_BTD = state
        elif c.injection == "additive":
            x_BTD = state + input_BTD
        else:
            x_BTD = self._inject(state, input_BTD)
        return self._normed(self._core(x_BTD, angles)[0])

    def read(self, state: Array) -> Array:
        """What the coda reads, (B, T, D): Σ lanes, or the state, normalised if only the last is."""
        if self.config.injection == "hyperconnect":
            return jnp.sum(state, axis=0)
        return self.state_norm(state) if self.config.state_norm == "last" else state

    def _normed(self, x_BTD: Array) -> Array:
        return self.state_norm(x_BTD) if self.config.state_norm == "every" else x_BTD


class Lanes(nn.Module):
    """Per-recurrence lane parameters: α_i reads, M_i mixes, β_i writes.

    α_i = e_{i mod K}, M_i = I, β_i = 1 at the start (arXiv:2604.21106).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, index: Array) -> tuple[Array, Array, Array]:
        R, K = self.config.recurrences, self.config.lanes
        tables = {
            "alpha": lambda *_: jnp.eye(K)[jnp.arange(R) % K],
            "mixing": lambda *_: jnp.tile(jnp.eye(K), (R, 1, 1)),
            "beta": lambda *_: jnp.ones((R, K)),
        }
        axes = {"alpha": ("recurrences", "lanes"), "mixing": ("recurrences", "lanes", "lanes_in"),
                "beta": ("recurrences", "lanes")}  # fmt: skip
        rows = [
            jax.lax.dynamic_index_in_dim(
                self.param(name, nn.with_logical_partitioning(init, axes[name])),
                index,
                keepdims=False,
            )
            for name, init in tables.items()
        ]
        return rows[0], rows[1], rows[2]
