"""How a recurrence sees the input again: modules that make its input from the state and e.

A new one is a class here, a row in INJECTIONS and its name among the choices of config.py.
Injections without parameters (additive, passthrough) and hyperconnections stand in block.py.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.model.config import ModelConfig
from looped_jax.model.layers import kernel_init, matmul, parameter

Array = jax.Array


def _first_half_identity(_key, shape, dtype=jnp.float32) -> Array:
    return jnp.eye(shape[0], shape[1], dtype=dtype)  # [I ‖ 0]


class LinearInjection(nn.Module):
    """u = W [e ‖ h] (arXiv:2604.21106), or W [h ‖ e] state first (arXiv:2502.05171).

    Starts as the identity on the first half with init "uniform_fan_in".
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, state_BTD: Array, input_BTD: Array) -> Array:
        c = self.config
        pair = [input_BTD, state_BTD] if c.injection_order == "input_first" else [
            state_BTD, input_BTD,
        ]  # fmt: skip
        init = _first_half_identity if c.init == "uniform_fan_in" else kernel_init(c, 2 * c.width)
        axes = ("inject", "embed")
        kernel_2DD = parameter(self, "kernel", init, (2 * c.width, c.width), axes)
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
        zeros, D = nn.initializers.zeros, c.width
        step = jnp.exp(parameter(self, "log_step", zeros, (D,), ("norm",)))[None, None, :]
        rate = jnp.exp(parameter(self, "log_decay", zeros, (D,), ("norm",)))[None, None, :]
        kernel = parameter(self, "kernel", kernel_init(c, D), (D, D), ("inject", "embed"))
        dtype = jnp.dtype(c.compute_dtype)
        written = matmul(input_BTD, kernel, dtype)
        return jnp.exp(-step * rate).astype(dtype) * state_BTD + step.astype(dtype) * written


INJECTIONS: dict[str, type[nn.Module]] = {
    "linear": LinearInjection,
    "diagonal": DiagonalInjection,
}
