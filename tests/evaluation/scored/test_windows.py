"""The text that suites score: each held-out token once, and what stands around it."""

import jax.numpy as jnp
import numpy as np

from looped_jax.evaluation.scored.windows import count_windows, score, training_counts
from tests.evaluation.conftest import T, elastic


def targets(params, tokens_BT, mask_BT):
    return jnp.asarray(tokens_BT[:, 1:]), mask_BT


def test_every_held_out_token_is_scored_once_and_in_order(trained):
    run = trained(elastic())
    found, text = score(run, targets, "")
    stream = run.data.validation.read(0, 10**6)
    np.testing.assert_array_equal(found, stream[1:])
    np.testing.assert_array_equal(text.target, stream[1:])
    np.testing.assert_array_equal(text.token, stream[:-1])
    np.testing.assert_array_equal(text.window, np.arange(len(text)) // T)
    np.testing.assert_array_equal(text.position, np.arange(len(text)) % T)
    ends = np.flatnonzero(stream == run.data.end_of_text_id)
    assert len(ends) == 3
    # The end of a document belongs to it, what comes after to the next.
    for document, end in enumerate(ends):
        assert text.document[end - 1] == document
    assert text.document[ends[0]] == 1


def test_a_part_of_the_windows(trained):
    run = trained(elastic())
    stream = run.data.validation.read(0, 10**6)
    for part in (range(3, 11), range(9, 17), range(0, 1)):
        found, text = score(run, targets, "", windows=part)
        np.testing.assert_array_equal(found, stream[1 + part.start * T : 1 + part.stop * T])
        assert text.window.min() == part.start
        assert text.window.max() == part.stop - 1
        np.testing.assert_array_equal(text.target, found)


def test_the_settings_bound_the_windows(trained):
    whole = count_windows(trained(elastic()))
    assert whole == -(-(len(trained(elastic()).data.validation) - 1) // T)
    assert count_windows(trained(elastic(), max_windows=5)) == 5


def test_counts_are_those_of_the_training_text(data):
    counts = training_counts(data)
    assert counts.sum() == len(data.train)
    assert counts[data.end_of_text_id] == 1
