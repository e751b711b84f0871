"""Injections: how they start, and that the diagonal one is stable."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model.injections import DiagonalInjection, LinearInjection
from tests.model.tiny import tiny

D = 32
E_BTD, H_BTD = jax.random.normal(jax.random.key(0), (2, 2, 5, D))


@pytest.mark.parametrize("order", ["input_first", "state_first"])
def test_linear_injection_starts_as_the_identity_on_its_first_half(order):
    inject = LinearInjection(tiny(injection_order=order))
    params = inject.init(jax.random.key(0), H_BTD, E_BTD)
    first = E_BTD if order == "input_first" else H_BTD
    np.testing.assert_array_equal(inject.apply(params, H_BTD, E_BTD), first)


def test_linear_injection_is_random_in_the_normal_family():
    inject = LinearInjection(tiny(init="normal", init_std=0.05))
    kernel = nn.unbox(inject.init(jax.random.key(0), H_BTD, E_BTD))["params"]["kernel"]
    assert jnp.std(kernel) == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 30.0])
def test_diagonal_injection_is_stable_for_any_parameters(scale):
    """Without input the state never grows, and with input it stays bounded."""
    inject = DiagonalInjection(tiny(injection="diagonal"))
    draw = lambda seed: scale * jax.random.normal(jax.random.key(seed), (D,))
    params = {"log_step": draw(1), "log_decay": draw(2), "kernel": jnp.eye(D)}
    apply = jax.jit(lambda h, e: inject.apply({"params": params}, h, e))
    decay = apply(jnp.ones((1, 1, D)), jnp.zeros((1, 1, D)))
    assert (decay >= 0).all()
    assert (decay <= 1).all()
    state = jnp.ones((1, 1, D))
    for _ in range(20):
        state = apply(state, jnp.zeros((1, 1, D)))
    np.testing.assert_allclose(state, decay**20, rtol=1e-4)


def test_diagonal_injection_at_initialisation():
    """Δ = a = 1: u = e^-1 h + W e."""
    inject = DiagonalInjection(tiny(injection="diagonal"))
    params = nn.unbox(inject.init(jax.random.key(0), H_BTD, E_BTD))
    expected = np.exp(-1) * H_BTD + E_BTD @ params["params"]["kernel"]
    np.testing.assert_allclose(inject.apply(params, H_BTD, E_BTD), expected, rtol=1e-5, atol=1e-5)
