"""Rows that fill the tables up: they change nothing but the shapes."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.interchange.exporting import of_vocabulary
from looped_jax.model.accounting import count_parameters
from looped_jax.model.lm import LoopedLM
from looped_jax.training.losses import chunked_cross_entropy
from tests.model.tiny import random_params, tiny

SMALL = {"width": 16, "head_dim": 8, "mlp_hidden": 32, "core_layers": 1, "recurrences": 1,
         "prelude_layers": 0, "coda_layers": 0, "vocab_size": 37}  # fmt: skip
PLAIN, PADDED = tiny(**SMALL), tiny(**SMALL, vocab_multiple=16)
TOKENS_BT = jnp.array([[0, 36, 5, 20]])


def loss(config, params):
    lm = LoopedLM(config)
    h_BTD = lm.apply({"params": params}, TOKENS_BT, method="embed")
    kernel_DV = lm.apply({"params": params}, method="head_kernel")
    return chunked_cross_entropy(
        h_BTD[0, :-1], kernel_DV, TOKENS_BT[0, 1:], softcap=config.softcap, chunk=8
    )


def test_padded_rows_are_out_of_the_softmax():
    params = random_params(PADDED)
    assert params["embed"]["embedding"].shape == (48, 16)
    assert params["head"]["kernel"].shape == (16, 48)
    cut = of_vocabulary(PADDED, params)
    assert jax.tree.map(jnp.shape, cut) == jax.tree.map(jnp.shape, random_params(PLAIN))
    h_BTD = np.ones((1, 2, 16), np.float32)
    readout = lambda c, p: LoopedLM(c).apply({"params": p}, h_BTD, method="readout")
    np.testing.assert_array_equal(readout(PADDED, params), readout(PLAIN, cut))
    value, gradients = jax.jit(jax.value_and_grad(lambda p: loss(PADDED, p)))(params)
    np.testing.assert_allclose(value, jax.jit(lambda p: loss(PLAIN, p))(cut), rtol=1e-6)
    assert not gradients["head"]["kernel"][:, 37:].any()
    assert not gradients["embed"]["embedding"][37:].any()
    assert gradients["head"]["kernel"][:, :37].any()


def test_padded_rows_are_parameters():
    padded, plain = count_parameters(PADDED), count_parameters(PLAIN)
    assert padded.embedding - plain.embedding == padded.head - plain.head == (48 - 37) * 16
