"""Injections, lanes and how a state begins and is read."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model.block import DiagonalInjection, Lanes, LinearInjection
from looped_jax.model.lm import LoopedLM
from tests.model.tiny import SANDWICH, random_params, tiny, with_injection

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


def test_lanes_start_reading_one_lane_each_and_are_indexed_by_recurrence():
    lanes = Lanes(with_injection("hyperconnect", lanes=2, recurrences=4))
    params = nn.unbox(lanes.init(jax.random.key(0), jnp.int32(0), jnp.float32))
    table = params["params"]
    np.testing.assert_array_equal(table["alpha"], [[1, 0], [0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(table["mixing"], np.tile(np.eye(2), (4, 1, 1)))
    np.testing.assert_array_equal(table["beta"], np.ones((4, 2)))

    numbered = jax.tree.map(lambda x: jnp.arange(x.size, dtype=x.dtype).reshape(x.shape), params)
    alpha, mixing, beta = lanes.apply(numbered, jnp.int32(2), jnp.float32)
    np.testing.assert_array_equal(alpha[:, 0, 0, 0], numbered["params"]["alpha"][2])
    np.testing.assert_array_equal(mixing[:, :, 0, 0, 0], numbered["params"]["mixing"][2])
    np.testing.assert_array_equal(beta[:, 0, 0, 0], numbered["params"]["beta"][2])
    per_sequence, _, _ = lanes.apply(numbered, jnp.array([2, 0, 3]), jnp.float32)
    np.testing.assert_array_equal(
        per_sequence[:, :, 0, 0].T, numbered["params"]["alpha"][jnp.array([2, 0, 3])]
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (tiny(), E_BTD),
        (with_injection("additive"), jnp.zeros_like(E_BTD)),
        (with_injection("hyperconnect"), jnp.stack([E_BTD, E_BTD])),
    ],
    ids=["input", "zeros", "lanes"],
)
def test_initial_state(config, expected):
    state = LoopedLM(config).apply({}, E_BTD, method="initial_state")
    np.testing.assert_array_equal(state, expected)


def test_the_coda_reads_the_sum_of_the_lanes():
    config = with_injection("hyperconnect", coda_layers=0)
    read = LoopedLM(config).apply({}, jnp.stack([H_BTD, E_BTD]), method="coda")
    np.testing.assert_allclose(read, H_BTD + E_BTD, rtol=1e-6)


def test_where_the_state_is_normalised():
    """every: after each recurrence; last: once, before the coda; none: never."""
    rms = lambda x: jnp.sqrt(jnp.mean(jnp.square(x), -1))
    norms = {}
    for where in ("every", "last", "none"):
        sandwich = SANDWICH | {"share_state_and_final_norm": False, "layer": "pre_norm"}
        config = tiny(
            **sandwich | {"state_norm": where, "coda_layers": 0, "initial_state": "zeros"}
        )
        model = LoopedLM(config)
        params = random_params(config)
        if where != "none":
            params["state_norm"]["scale"] = jnp.ones(D)
        run = lambda method, *args, m=model, p=params: m.apply({"params": p}, *args, method=method)
        state = run("recur", H_BTD, E_BTD, 0)
        norms[where] = rms(state), rms(run("coda", state))
    np.testing.assert_allclose(norms["every"][0], 1, rtol=1e-4)
    np.testing.assert_allclose(norms["last"][1], 1, rtol=1e-4)
    assert (jnp.abs(norms["last"][0] - 1) > 1e-2).any()
    np.testing.assert_array_equal(norms["none"][0], norms["none"][1])
