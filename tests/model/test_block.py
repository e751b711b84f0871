"""Lanes, and how a state begins and is read."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model.block import Lanes
from looped_jax.model.lm import LoopedLM
from tests.model.tiny import SANDWICH, random_params, tiny, with_injection

D = 32
E_BTD, H_BTD = jax.random.normal(jax.random.key(0), (2, 2, 5, D))


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
