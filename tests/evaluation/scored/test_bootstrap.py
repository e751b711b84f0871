"""Bootstrap over documents or windows: the right unit, the right spread."""

import numpy as np
import pytest

from looped_jax.evaluation.scored.bootstrap import Bootstrap, Estimate, estimate
from looped_jax.evaluation.scored.windows import ScoredText


def text_of(units, per_unit, documents=1):
    window = np.repeat(np.arange(units), per_unit)
    document = window * documents // units
    zeros = np.zeros(len(window), int)
    return ScoredText(window, zeros, document, zeros, zeros)


def test_documents_are_drawn_where_there_are_enough():
    assert Bootstrap(text_of(60, 4, documents=20), 10, 0).unit == "document"
    assert Bootstrap(text_of(60, 4, documents=20), 10, 0).units == 20
    few = Bootstrap(text_of(60, 4, documents=19), 10, 0)
    assert (few.unit, few.units) == ("window", 60)
    assert few.describe() == {"unit": "window", "units": 60, "resamples": 10, "seed": 0}


def test_the_standard_error_is_that_between_units():
    rng = np.random.default_rng(1)
    units, per_unit = 200, 10
    effect = rng.normal(0, 1, units)
    values = np.repeat(effect, per_unit) + rng.normal(0, 0.1, units * per_unit)
    found = estimate(Bootstrap(text_of(units, per_unit), 2000, 0).means(values))
    expected = values.reshape(units, per_unit).mean(1).std(ddof=1) / np.sqrt(units)
    assert found.value == pytest.approx(values.mean())
    assert found.standard_error == pytest.approx(expected, rel=0.1)
    low, high = found.ci95
    assert high - low == pytest.approx(2 * 1.96 * expected, rel=0.1)


def test_units_count_by_their_tokens():
    text = ScoredText(np.array([0, 0, 0, 1]), *[np.zeros(4, int)] * 4)
    bootstrap = Bootstrap(text, 500, 0)
    means = bootstrap.means(np.array([1.0, 1.0, 1.0, 5.0]))
    assert means[0] == 2.0
    # Of two units of three tokens and one, resamples have means 1, 2 and 5.
    assert set(means[1:]) == {1.0, 2.0, 5.0}


def test_means_over_a_part_and_where_there_is_none():
    bootstrap = Bootstrap(text_of(3, 2), 200, 0)
    of = np.array([True, False, False, False, False, False])
    means = bootstrap.means(np.arange(6.0)[None], of)[0]
    assert means[0] == 0.0
    assert np.isnan(means[1:]).any()
    assert estimate(means).ci95 == (0.0, 0.0)


def test_medians_of_resamples():
    rng = np.random.default_rng(0)
    values = rng.normal(size=150)
    bootstrap = Bootstrap(text_of(50, 3), 20, 3)
    medians = bootstrap.medians(values)
    assert len(medians) == 21
    for weights, median in zip([np.ones(50), *bootstrap.weights_SU], medians, strict=True):
        drawn = np.repeat(values, np.repeat(weights, 3).astype(int))
        assert median == pytest.approx(np.quantile(drawn, 0.5, method="inverted_cdf"))


def test_one_seed_gives_one_answer_and_differences_are_paired():
    rng = np.random.default_rng(0)
    a = rng.normal(size=400)
    means = Bootstrap(text_of(100, 4), 300, 0).means(np.stack([a, a + 0.01]))
    again = Bootstrap(text_of(100, 4), 300, 0).means(a)
    np.testing.assert_allclose(means[0], again, rtol=1e-9)
    assert estimate(means[1] - means[0]).standard_error < 1e-12


def test_what_has_no_value_is_null():
    assert Estimate.of(float("nan"), np.array([1.0, 2.0])).to_json() == {
        "value": None,
        "standard_error": None,
        "ci95": [None, None],
    }
