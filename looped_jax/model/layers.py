"""One transformer layer and stacks of layers: norms, rotary positions, projections, MLPs.

Parameters are float32; matrices are applied in the compute dtype with float32 accumulation,
norms and softmax in float32. Kernels are (in, out). Logical axis names ("embed", "heads", "mlp",
"vocab", "layers", ...) are attached to every parameter; parallel.py maps them to mesh axes.
"""

from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from looped_jax.model.attention import Attend, Context, causal_attention
from looped_jax.model.config import ModelConfig

Array = jax.Array

# (q, k, v) -> (mixed, memory), all but the memory (B, T, H, d).
Mix = Callable[[Array, Array, Array], tuple[Array, Any]]

# What policies of rematerialisation call the product with a parameter matrix: they do not see into
# functions with a gradient of their own.
PRODUCT = "product"


def kernel_init(config: ModelConfig, fan_in: int) -> nn.initializers.Initializer:
    """Initialiser of a matrix: uniform with variance 1 / fan_in, or a plain normal."""
    if config.init == "normal":
        return nn.initializers.normal(config.init_std)
    limit = (3.0 / fan_in) ** 0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
        key, shape, dtype, minval=-limit, maxval=limit
    )


def parameter(
    module: nn.Module,
    name: str,
    initializer: nn.initializers.Initializer,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
) -> Array:
    """A float32 parameter of `module`, with a logical axis name for each dimension."""
    boxed = nn.with_logical_partitioning(initializer, axes)
    return cast(Array, module.param(name, boxed, shape, jnp.float32))


def matmul(x: Array, kernel_IO: Array, dtype: jnp.dtype) -> Array:
    """x (..., I) times kernel (I, O) in `dtype`, accumulated in float32; result in `dtype`.

    The kernel's gradient is float32, whatever the compute dtype.
    """
    x_NI = x.astype(dtype).reshape(-1, x.shape[-1])
    product_NO = checkpoint_name(_product(x_NI, kernel_IO), PRODUCT)
    return product_NO.reshape(*x.shape[:-1], kernel_IO.shape[1])


@jax.custom_vjp
def _product(x_NI: Array, kernel_IO: Array) -> Array:
    return _accumulated(x_NI, kernel_IO.astype(x_NI.dtype)).astype(x_NI.dtype)


def _product_forward(x_NI: Array, kernel_IO: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(x_NI, kernel_IO), (x_NI, kernel_IO)


def _product_backward(residuals: tuple[Array, Array], g_NO: Array) -> tuple[Array, Array]:
    """Both gradients as products of materialised matrices.

    Without the barriers XLA:CPU fuses what made x or g into a transposing copy that costs more than
    the product, and it multiplies fastest when the narrower operand is the one transposed.
    """
    x_NI, kernel_IO = residuals
    x_NI, g_NO = jax.lax.optimization_barrier((x_NI, g_NO))
    dx_NI = _accumulated(g_NO, kernel_IO.astype(g_NO.dtype).T).astype(x_NI.dtype)
    if x_NI.shape[1] > g_NO.shape[1]:
        dkernel_IO = jax.lax.optimization_barrier(_accumulated(g_NO.T, x_NI)).T
    else:
        dkernel_IO = _accumulated(x_NI.T, g_NO)
    return dx_NI, dkernel_IO.astype(kernel_IO.dtype)


_product.defvjp(_product_forward, _product_backward)


def _accumulated(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def of_unit_rms(x: Array, epsilon: float) -> Array:
    """x / sqrt(mean of x² over the last axis + epsilon), in float32."""
    x32 = x.astype(jnp.float32)
    return x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), -1, keepdims=True) + epsilon)


class RMSNorm(nn.Module):
    """x / rms(x), times a learned scale; computed in float32."""

    epsilon: float

    @nn.compact
    def __call__(self, x_BTD: Array) -> Array:
        D = x_BTD.shape[-1]
        scale_D = parameter(self, "scale", nn.initializers.ones, (D,), ("norm",))
        scale = scale_D.reshape((1,) * (x_BTD.ndim - 1) + (-1,))
        return (of_unit_rms(x_BTD, self.epsilon) * scale).astype(x_BTD.dtype)


def rotary_angles(config: ModelConfig, positions_BT: Array) -> tuple[Array, Array]:
    """(cos, sin), each (B, T, 1, head_dim / 2) in float32, for given positions in tokens."""
    half = config.head_dim // 2
    frequency = config.rope_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions_BT[..., None, None].astype(jnp.float32) * frequency[None, None, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(config: ModelConfig, x: Array, cos: Array, sin: Array) -> Array:
    """Applies rotary positions to x (B, T, …, d) with cos and sin (B or 1, T, …, d / 2).

    Pairs are (i, i + d/2) or (2i, 2i + 1) by `positions`.
    """
    cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    if config.positions == "rope_half":
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos + b * sin, b * cos - a * sin], axis=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def queries_keys_values(
    config: ModelConfig, qkv: Array, bias_2A: Array | None, angles: tuple[Array, Array] | None
) -> tuple[Array, Array, Array]:
    """What attention compares and mixes, each (B, T, H, d), from the product qkv (B, T, 3 A).

    Queries and keys get their bias, rotary positions by `angles` and norm where the model has them.
    """
    c, (B, T, _) = config, qkv.shape
    qk, v = jnp.split(qkv.reshape(B, T, 3, c.heads, c.head_dim), [2], axis=2)
    if bias_2A is not None:
        qk = qk + bias_2A.astype(qk.dtype).reshape(1, 1, 2, c.heads, c.head_dim)
    if angles is not None:
        cos, sin = (angle[:, :, None] for angle in angles)
        qk = rotate(c, qk, cos, sin)
    if c.qk_norm:
        qk = of_unit_rms(qk, c.norm_epsilon).astype(qk.dtype)
    q, k = jnp.split(qk, 2, axis=2)
    return q[:, :, 0], k[:, :, 0], v[:, :, 0]


class Attention(nn.Module):
    """Multi-head self-attention with rotary positions, optional QK norm and QK bias.

    `mix(q, k, v) -> (mixed, memory)`, all (B, T, H, d), is the attention itself.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BTD: Array, angles: tuple[Array, Array] | None, mix: Mix
    ) -> tuple[Array, Any]:
        c = self.config
        dtype = jnp.dtype(c.compute_dtype)
        B, T, D = x_BTD.shape
        init = kernel_init(c, D)
        qkv_D3A = Kernel((D, 3, c.attention_width), init, ("embed", "qkv", "heads"), name="qkv")()
        qkv = matmul(x_BTD, qkv_D3A.reshape(D, 3 * c.attention_width), dtype)
        bias_2A = None
        if c.qk_bias:
            zeros, A = nn.initializers.zeros, c.attention_width
            bias_2A = parameter(self, "qk_bias", zeros, (2, A), ("qkv", "heads"))
        q, k, v = queries_keys_values(c, qkv, bias_2A, angles)
        mixed_BTHd, memory = mix(q, k, v)
        out_init = kernel_init(c, c.attention_width)
        out_AD = Kernel((c.attention_width, D), out_init, ("heads", "embed"), name="out")()
        return matmul(mixed_BTHd.reshape(B, T, c.attention_width), out_AD, dtype), memory


class Kernel(nn.Module):
    """One matrix under its own name, so that every matrix of the tree is `name/kernel`."""

    shape: tuple[int, ...]
    initializer: nn.initializers.Initializer
    axes: tuple[str, ...]

    @nn.compact
    def __call__(self) -> Array:
        return parameter(self, "kernel", self.initializer, self.shape, self.axes)


class MLP(nn.Module):
    """relu(x W)^2 W', or (silu(x W_gate) * x W_up) W'."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: Array) -> Array:
        c = self.config
        dtype = jnp.dtype(c.compute_dtype)
        D, F = c.width, c.mlp_hidden
        init = kernel_init(c, D)
        if c.mlp == "relu2":
            up_DF = Kernel((D, F), init, ("embed", "mlp"), name="up")()
            hidden_BTF = jnp.square(jax.nn.relu(matmul(x_BTD, up_DF, dtype)))
        else:
            kernel_D2F = Kernel((D, 2, F), init, ("embed", "gate_up", "mlp"), name="gate_up")()
            gate_up = matmul(x_BTD, kernel_D2F.reshape(D, 2 * F), dtype)
            gate, up = jnp.split(gate_up, 2, axis=-1)
            hidden_BTF = jax.nn.silu(gate) * up
        hidden_BTF = nn.with_logical_constraint(hidden_BTF, ("batch", "length", "hidden"))
        down_FD = Kernel((F, D), kernel_init(c, F), ("mlp", "embed"), name="down")()
        return matmul(hidden_BTF, down_FD, dtype)


class Layer(nn.Module):
    """One layer. pre_norm: x + f(norm x). sandwich: norm(f(norm x) + x) (arXiv:2502.05171).

    What it carries to the next is (x (B, T, D), memory): with an `attend`, layer number `layer` of
    the stack attends by it; without one, causally, and the memory is None.
    """

    config: ModelConfig
    deterministic: bool = True

    @nn.compact
    def __call__(
        self,
        carried: tuple[Array, Any],
        angles: tuple[Array, Array] | None,
        attend: Attend | None = None,
        layer: Array | None = None,
    ) -> tuple[tuple[Array, Any], None]:
        c = self.config
        x_BTD, memory = carried

        def mix(q: Array, k: Array, v: Array) -> tuple[Array, Any]:
            if attend is None:
                return causal_attention(q, k, v, c.attention), None
            assert layer is not None
            return attend(layer, q, k, v, memory)

        norm = lambda name: RMSNorm(c.norm_epsilon, name=name)
        drop = nn.Dropout(c.dropout, deterministic=self.deterministic)
        mixed_BTD, memory = Attention(c, name="attn")(norm("attn_norm")(x_BTD), angles, mix)
        x_BTD = x_BTD + drop(mixed_BTD)
        if c.layer == "sandwich":
            x_BTD = norm("attn_post_norm")(x_BTD)
        x_BTD = x_BTD + drop(MLP(c, name="mlp")(norm("mlp_norm")(x_BTD)))
        if c.layer == "sandwich":
            x_BTD = norm("mlp_post_norm")(x_BTD)
        x_BTD = nn.with_logical_constraint(x_BTD, ("batch", "length", "width"))
        return (x_BTD, memory), None


# What a layer keeps for its backward pass, by `model.remat`: everything else is computed again.
KEPT_BY_REMAT = {
    "layer": jax.checkpoint_policies.nothing_saveable,
    "products": jax.checkpoint_policies.save_only_these_names(PRODUCT),
}


def layer_stack(config: ModelConfig, layers: int, *, deterministic: bool, name: str) -> nn.Module:
    """So many distinct layers, parameters stacked on axis 0 under `name`, for `run_stack`."""
    layer = Layer
    if config.remat != "none":
        # A caller's `attend` (the third argument after self) is a function and no array.
        layer = nn.remat(
            Layer, prevent_cse=False, policy=KEPT_BY_REMAT[config.remat], static_argnums=3
        )
    stack = nn.scan(
        layer,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast, nn.broadcast, 0),
        length=layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
        # The check traces every stack once more; a layer has nothing that it could find.
        check_constancy_invariants=False,
    )
    return stack(config, deterministic, name=name)


def run_stack(
    stack: nn.Module | None,
    layers: int,
    x_BTD: Array,
    angles: tuple[Array, Array] | None,
    context: Context | None,
) -> Any:
    """x (B, T, D) after a `layer_stack` of so many layers (None where there are none).

    With a context: (x, the memory at the end).
    """
    if context is None:
        return x_BTD if stack is None else stack((x_BTD, None), angles, None, None)[0][0]
    carried = (x_BTD, context.memory)
    if stack is None:
        return carried
    return stack(carried, angles, context.attend, jnp.arange(layers))[0]
