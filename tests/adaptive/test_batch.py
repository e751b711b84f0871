"""Scoring of given texts from Python."""

from types import SimpleNamespace

import numpy as np
import pytest

from looped_jax import adaptive
from looped_jax.adaptive.rule import Rule
from looped_jax.errors import UserError
from looped_jax.model.lm import LoopedLM
from tests.model.tiny import random_params, tiny, with_injection

TEXTS = ["It was a dark night", "no", "and a longer text than the others are, by far"]
MODEL = tiny(vocab_size=300, max_length=32, max_recurrences=3, prelude_layers=0, coda_layers=0)


@pytest.fixture(scope="module")
def run(data):
    return SimpleNamespace(model=MODEL, params=random_params(MODEL), tokenizer=data.tokenizer())


def test_every_token_of_every_text_in_order(run):
    found = adaptive.score(run, TEXTS, batch_size=2)
    for text, scored in zip(TEXTS, found, strict=True):
        ids = run.tokenizer.encode(text)
        np.testing.assert_array_equal(scored.tokens, ids)
        assert (scored.loops == 3).all()
        logits = LoopedLM(MODEL).apply({"params": run.params}, np.array([[0, *ids[:-1]]]), 3)[0]
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = -np.asarray(log_p)[np.arange(len(ids)), ids]
        np.testing.assert_allclose(scored.nats, expected, rtol=1e-4, atol=1e-4)


def test_a_rule_lets_tokens_exit_and_no_text_depends_on_the_others(run):
    found = adaptive.score(run, TEXTS, exit="change:0.8", batch_size=2)
    loops = np.concatenate([text.loops for text in found])
    assert len(np.unique(loops)) > 1
    (alone,) = adaptive.score(run, TEXTS[1:2], exit=Rule("change", 0.8), batch_size=2)
    np.testing.assert_array_equal(alone.loops, found[1].loops)
    np.testing.assert_allclose(alone.nats, found[1].nats, atol=1e-5)


def test_what_is_refused(run):
    with pytest.raises(UserError, match=r"text 'It was a dark nightI…' has .* allowed: 1 to"):
        adaptive.score(run, [TEXTS[0] * 9])
    with pytest.raises(UserError, match=r"exit 'probe:1' without what its signal was fitted with"):
        adaptive.score(run, TEXTS, exit="probe:1")
    lanes = SimpleNamespace(**vars(run) | {"model": with_injection("hyperconnect")})
    with pytest.raises(UserError, match="exit with injection 'hyperconnect'"):
        adaptive.score(lanes, TEXTS)
