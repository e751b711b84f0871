"""Distributions of norms on samples whose answer is known."""

import numpy as np
import pytest

from looped_jax.evaluation.readout.tails import distribution, quantile, tail_index
from looped_jax.evaluation.scored.bootstrap import Bootstrap
from looped_jax.evaluation.scored.windows import ScoredText


def text_of(units, per_unit):
    window = np.repeat(np.arange(units), per_unit)
    return ScoredText(window, *[np.zeros(len(window), int)] * 4)


def test_a_power_law_and_a_light_tail():
    rng = np.random.default_rng(0)
    pareto = (1 - rng.random(40_000)) ** (-1 / 3)  # P(X > x) = x^-3
    normal = 10 + rng.standard_normal(40_000)
    found = distribution(Bootstrap(text_of(400, 100), 300, 0), np.stack([pareto, normal]))
    index = found["tail_index"]
    assert index[0]["ci95"][0] < 3 < index[0]["ci95"][1]
    assert index[0]["ci95"][1] - index[0]["ci95"][0] < 0.6
    assert index[1]["value"] > 15
    assert found["mean"][0]["value"] == pytest.approx(1.5, rel=0.03)
    assert found["median"][0]["value"] == pytest.approx(2 ** (1 / 3), rel=0.02)
    assert found["p99"][0]["value"] == pytest.approx(100 ** (1 / 3), rel=0.1)
    for name in ("median", "p99"):
        low, high = found[name][1]["ci95"]
        assert low < found[name][1]["value"] < high


def test_weights_count_tokens_again():
    x = np.sort(np.random.default_rng(0).pareto(2, 400) + 1)
    twice = np.repeat(x, 2)
    weights = np.full(400, 2.0)
    assert tail_index(x, weights) == pytest.approx(tail_index(twice, np.ones(800)), rel=0.05)
    for level in (0.5, 0.99):
        assert quantile(x, weights, level) == quantile(twice, np.ones(800), level)
    kept = np.ones(400)
    kept[200:] = 0
    assert quantile(x, kept, 0.99) <= x[199]


def test_no_tail_no_index():
    assert np.isnan(tail_index(np.ones(100), np.ones(100)))
    assert np.isnan(tail_index(np.zeros(100), np.ones(100)))
