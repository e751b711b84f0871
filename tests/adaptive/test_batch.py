"""Scoring of given texts from Python."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from looped_jax import adaptive
from looped_jax.adaptive import batch
from looped_jax.adaptive.rule import Rule
from looped_jax.errors import UserError
from looped_jax.model.lm import LoopedLM
from tests.model.tiny import random_params, tiny, with_injection

TEXTS = ["a dark night", "no", "and it was long"]
MODEL = tiny(vocab_size=300, max_length=32, max_recurrences=3, prelude_layers=0, coda_layers=0)
LENGTH = batch.SMALLEST_LENGTH


@pytest.fixture(scope="module")
def run(data):
    return SimpleNamespace(model=MODEL, params=random_params(MODEL), tokenizer=data.tokenizer())


def test_every_token_of_every_text_in_order(run):
    found = adaptive.score(run, TEXTS, batch_size=2)
    logits_of = jax.jit(
        lambda tokens_BT: LoopedLM(MODEL).apply({"params": run.params}, tokens_BT, 3)
    )
    for text, scored in zip(TEXTS, found, strict=True):
        ids = run.tokenizer.encode(text)
        np.testing.assert_array_equal(scored.tokens, ids)
        assert (scored.loops == 3).all()
        padded = np.zeros((1, LENGTH), np.int32)
        padded[0, 1 : len(ids)] = ids[:-1]
        log_p = log_softmax(np.asarray(logits_of(padded))[0], -1)
        expected = -log_p[np.arange(len(ids)), ids]
        np.testing.assert_allclose(scored.nats, expected, rtol=1e-4, atol=1e-4)


def test_rows_of_similar_length_stand_together():
    ids = [np.arange(n, dtype=np.int32) for n in (5, 30, 18, 17)]
    found = [(rows, tokens_BT.shape) for rows, tokens_BT in batch.batches(ids, 2, 32)]
    assert found == [([0, 3], (2, LENGTH + 1)), ([2, 1], (2, 33))]


def test_a_rule_lets_tokens_exit_and_no_text_depends_on_the_others(run):
    found = adaptive.score(run, TEXTS, exit="change:1", batch_size=2)
    loops = np.concatenate([text.loops for text in found])
    assert len(np.unique(loops)) > 1
    (alone,) = adaptive.score(run, TEXTS[1:2], exit=Rule("change", 1.0), batch_size=2)
    np.testing.assert_array_equal(alone.loops, found[1].loops)
    np.testing.assert_allclose(alone.nats, found[1].nats, atol=1e-5)


def test_what_is_refused(run):
    with pytest.raises(UserError, match=r"text 'a dark nighta dark n…' has .* allowed: 1 to"):
        adaptive.score(run, [TEXTS[0] * 9])
    with pytest.raises(UserError, match=r"exit 'probe:1' without what its signal was fitted with"):
        adaptive.score(run, TEXTS, exit="probe:1")
    lanes = SimpleNamespace(**vars(run) | {"model": with_injection("hyperconnect")})
    with pytest.raises(UserError, match="exit with injection 'hyperconnect'"):
        adaptive.score(lanes, TEXTS)
