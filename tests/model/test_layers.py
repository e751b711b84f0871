"""Norms, rotary positions, attention and MLPs against their definitions."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model import layers
from looped_jax.model.attention import causal_attention
from tests.model.tiny import READOUT, SANDWICH, tiny

B, T, H, d = 2, 8, 2, 16
KEYS = jax.random.split(jax.random.key(0), 4)


def test_rmsnorm():
    x = 5 * jax.random.normal(KEYS[0], (B, T, 32))
    scale = jax.random.normal(KEYS[1], (32,))
    expected = x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 0.1) * scale[None, None]
    norm = layers.RMSNorm(0.1)
    actual = norm.apply({"params": {"scale": scale}}, x)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert norm.apply({"params": {"scale": scale}}, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("positions", ["rope_half", "rope_interleaved"])
def test_rotary_scores_depend_on_the_distance_only(positions):
    config = tiny(positions=positions)
    q, k = jax.random.normal(KEYS[0], (2, 1, 1, 1, d))

    def score(q_position, k_position):
        angle = lambda p: layers.rotary_angles(config, jnp.array([[p]]))
        rotated = (
            layers.rotate(config, q, *angle(q_position)),
            layers.rotate(config, k, *angle(k_position)),
        )
        return float(jnp.sum(rotated[0] * rotated[1]))

    assert score(9, 4) == pytest.approx(score(105, 100), rel=1e-3)
    assert score(9, 4) != pytest.approx(score(9, 5), rel=1e-2)
    assert score(3, 3) == pytest.approx(float(jnp.sum(q * k)), rel=1e-5)
    assert score(4, 9) != pytest.approx(score(9, 4), rel=1e-2)


def test_attention_equals_its_definition():
    q, k, v = jax.random.normal(KEYS[1], (3, B, T, H, d))
    out = np.zeros((B, T, H, d), np.float32)
    for b, t, h in np.ndindex(B, T, H):
        scores = k[b, : t + 1, h] @ q[b, t, h] / d**0.5
        weights = np.exp(scores - scores.max())
        out[b, t, h] = (weights / weights.sum()) @ v[b, : t + 1, h]
    np.testing.assert_allclose(causal_attention(q, k, v, "xla"), out, rtol=1e-4, atol=1e-5)


def test_mlps_equal_their_definitions():
    x = jax.random.normal(KEYS[2], (B, T, 32))
    mlp = layers.MLP(tiny())
    params = nn.unbox(mlp.init(KEYS[3], x))
    up, down = params["params"]["up"]["kernel"], params["params"]["down"]["kernel"]
    expected = np.square(np.maximum(x @ up, 0)) @ down
    np.testing.assert_allclose(mlp.apply(params, x), expected, rtol=1e-4, atol=1e-5)

    mlp = layers.MLP(tiny(mlp="gated_silu"))
    params = nn.unbox(mlp.init(KEYS[3], x))
    gate_up, down = params["params"]["gate_up"]["kernel"], params["params"]["down"]["kernel"]
    expected = (nn.silu(x @ gate_up[:, 0]) * (x @ gate_up[:, 1])) @ down
    np.testing.assert_allclose(mlp.apply(params, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", [{}, SANDWICH, READOUT], ids=["isodepth", "sandwich", "readout"])
def test_a_stack_is_its_layers_one_after_the_other(family):
    config = tiny(**family)
    x = jax.random.normal(KEYS[2], (B, T, 32))
    angles = (
        None if config.positions == "learned" else layers.rotary_angles(config, jnp.arange(T)[None])
    )
    stack = layers.layer_stack(config, 3, deterministic=True, name="stack")
    params = nn.unbox(stack.init(KEYS[3], (x, None), angles, None, None))["params"]
    y = x
    for i in range(3):
        layer = {"params": jax.tree.map(lambda leaf, i=i: leaf[i], params)}
        y = layers.Layer(config).apply(layer, (y, None), angles)[0][0]
    run = lambda stack: layers.run_stack(stack, 3, x, angles, None)
    np.testing.assert_allclose(nn.apply(run, stack)({"params": params}), y, rtol=1e-5, atol=1e-5)
