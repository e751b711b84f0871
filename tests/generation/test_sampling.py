"""What may be drawn, with which probability, and that draws are repeatable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.generation.sampling import Sampling, next_token

P = np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32)
LOGITS = jnp.log(P)[jnp.array([3, 0, 4, 1, 2])]  # not in order
MEANING = np.array([3, 0, 4, 1, 2])
DRAWS = 4000

draw = jax.jit(next_token)


def frequencies(**how):
    sampling = Sampling(**how)
    tokens = draw(jnp.tile(LOGITS, (DRAWS, 1)), sampling.keys(range(DRAWS)), sampling.knobs())
    return np.bincount(MEANING[np.asarray(tokens)], minlength=5) / DRAWS


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, P),
        ({"temperature": 0.5}, P**2 / np.sum(P**2)),
        ({"top_k": 2}, np.array([4, 3, 0, 0, 0]) / 7),
        ({"top_k": 50}, P),
        ({"top_p": 0.6}, np.array([4, 3, 0, 0, 0]) / 7),
        ({"top_p": 0.1}, np.array([1, 0, 0, 0, 0])),
        # top_p applies to what top_k leaves: 0.4 / 0.85 < 0.5 <= 0.7 / 0.85.
        ({"top_k": 3, "top_p": 0.5}, np.array([4, 3, 0, 0, 0]) / 7),
        ({"temperature": 0.0}, np.array([1, 0, 0, 0, 0])),
    ],
)
def test_distribution(how, expected):
    np.testing.assert_allclose(frequencies(**how), expected, atol=0.03)


def test_a_row_draws_as_its_seed_alone_would():
    sampling, logits = Sampling(seed=3), jnp.zeros((4, 50))
    together = draw(logits, sampling.keys(range(4)), sampling.knobs())
    alone = [
        int(draw(logits[:1], Sampling(seed=3 + row).keys([0]), sampling.knobs())[0])
        for row in range(4)
    ]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperature": -1.0}, "temperature = -1.0; allowed: 0 .greedy. or more"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": -1}, "top_k = -1; allowed: 0 .all tokens. or more"),
        ({"top_p": 0.0}, "top_p = 0.0; allowed: above 0, up to 1"),
        ({"seed": -1}, "seed = -1; allowed: 0 to 2147483647"),
    ],
)
def test_what_is_not_allowed(how, message):
    with pytest.raises(UserError, match=message):
        Sampling(**how)
