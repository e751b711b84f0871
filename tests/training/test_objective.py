"""What training minimises is what the published implementations minimise."""

import jax
import numpy as np
import pytest

from looped_jax.config import LossConfig
from looped_jax.training.objective import objective
from tests.golden import readout_names
from tests.model.test_golden import assert_close, assert_gradients_close, load
from tests.model.tiny import READOUT, tiny

CONDITIONS = {
    "perloop_rmsnorm": ("every", LossConfig("every", (), 0.0, 7)),
    "perloop_raw": ("none", LossConfig("every", (), 0.0, 7)),
    "perloop_final_norm": ("last", LossConfig("every", (), 0.0, 7)),
    "terminal_rmsnorm_penalty": ("every", LossConfig("last", (), 0.01, 7)),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_published_numbers(condition):
    arrays, _, _ = load(f"readout_{condition}")
    readout_norm, loss = CONDITIONS[condition]
    model = tiny(**READOUT, readout_norm=readout_norm)
    params = readout_names.to_params(arrays)

    def total(params):
        return objective(model, loss, params, arrays["tokens"], model.recurrences, {})

    (value, metrics), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    assert_close(value, arrays["loss"])
    assert_close(metrics["loss"], arrays["loop_losses"][-1])
    if loss.norm_penalty:
        assert_close(metrics["mean_square_state"], arrays["loop_mean_square"].mean())
    assert_gradients_close(gradients, readout_names.to_params(arrays, "grad/"))


def test_every_loop_can_have_a_target_of_its_own():
    arrays, _, _ = load("readout_perloop_rmsnorm")
    model = tiny(**READOUT)
    params, tokens = readout_names.to_params(arrays), arrays["tokens"]
    own = np.stack([np.roll(tokens[:, 1:], loop, axis=1) for loop in range(4)], axis=-1)

    def loss_of(supervision, weights, targets):
        config = LossConfig(supervision, weights, 0.0, 7)
        return objective(model, config, params, tokens, model.recurrences, {}, targets)[0]

    np.testing.assert_allclose(
        loss_of("by_loop", (1.0, 0.0, 0.0, 0.0), own),  # loop 1 has the token that follows
        loss_of("every", (1.0, 0.0, 0.0, 0.0), None),
        rtol=1e-6,
    )
    rolled = np.repeat(own[..., 2:3], 4, axis=-1)
    third = loss_of("by_loop", (0.0, 0.0, 1.0, 0.0), own)
    np.testing.assert_allclose(third, loss_of("by_loop", (0.0, 0.0, 1.0, 0.0), rolled), rtol=1e-6)
    assert abs(third - arrays["loop_losses"][2]) > 0.1


def test_weights_of_the_loops():
    arrays, _, _ = load("readout_perloop_rmsnorm")
    model = tiny(**READOUT)
    weights = (0.1, 0.0, 0.4, 2.0)
    loss = LossConfig("every", weights, 0.0, 7)
    params = readout_names.to_params(arrays)
    value, metrics = objective(model, loss, params, arrays["tokens"], model.recurrences, {})
    np.testing.assert_allclose(value, np.dot(weights, arrays["loop_losses"]), rtol=1e-5)
    np.testing.assert_allclose(metrics["mean_loop_loss"], value)
