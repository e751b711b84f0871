"""Loss at every depth, and up to where depth is useful."""

import numpy as np

from looped_jax.evaluation.depth import depth_suite, useful_depth
from tests.evaluation.conftest import elastic


def test_depth_is_useful_up_to_5_millinats_from_the_best():
    depths = np.array([1, 2, 4, 8])
    loss = np.array(
        [
            [4.0, 4.0, 3.0, 4.0],
            [3.006, 3.004, 3.2, 4.0],
            [3.0, 3.0, 3.3, 4.0],
            [3.5, 3.0, 3.4, 4.0],
        ]
    )
    np.testing.assert_array_equal(useful_depth(depths, loss), [4, 2, 1, 1])


def test_the_suite(trained):
    run = trained(elastic(), depths=(8, 1, 2, 2))
    result = depth_suite(run)
    assert result["depths"] == [1, 2, 8]
    assert result["training"] == {
        "kind": "fixed", "per": "step", "mean": 4.0, "sigma": 0.0, "minimum": 4, "maximum": 4,
        "backprop_recurrences": 0,
    }  # fmt: skip
    loss = np.array([row["value"] for row in result["loss"]])
    assert (loss > 1).all()
    best = result["best_depth"]["value"]
    assert loss[result["depths"].index(best)] == loss.min()
    n_bytes = run.data.validation_bytes.read(1, 10**6).sum()
    expected = loss * result["tokens"] / (np.log(2) * n_bytes)
    np.testing.assert_allclose(result["bits_per_byte"], expected)
    assert result["against_mean"]["depth"] == 2  # of those measured, the nearest to 4
    differences = [row["value"] for row in result["against_mean"]["difference"]]
    np.testing.assert_allclose(differences, loss - loss[1], atol=1e-12)
    ratio = result["useful"]["over_training_mean"]["value"]
    assert ratio == result["useful"]["depth"]["value"] / 4
