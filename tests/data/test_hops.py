"""The task of hops: what its text says, what each loop is to answer, and what is held out."""

import numpy as np
import pytest

from looped_jax.data import hops, pipeline
from looped_jax.data.pipeline import train_batches, validation_batches
from looped_jax.data.prepare import prepare
from looped_jax.errors import UserError

T = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    with patch.context() as p:
        p.setattr(hops, "PIECE_TRIPLES", 64)
        p.setattr(hops, "TRIPLES", {"train": 512, "validation": 64})
        yield prepare("hops", tmp_path_factory.mktemp("hops") / "data", say=str)


def triples(stream):
    """x, k and the answer of every triple, as numbers."""
    ids = stream.read(0, len(stream) - 1).reshape(-1, 3)
    return (ids - [hops.FIRST_SYMBOL, hops.FIRST_HOPS - 1, hops.FIRST_SYMBOL]).T


def test_answers_follow_the_permutation(data):
    f = hops.powers()[1]
    assert sorted(f) == list(range(hops.SYMBOLS))
    x, k, y = triples(data.train)
    assert set(k) == set(range(1, hops.MOST_HOPS + 1))
    for step in range(hops.MOST_HOPS):
        x = np.where(k > step, f[x], x)
    np.testing.assert_array_equal(x, y)


def test_the_held_out_text_is_another_one_with_fewer_hops(data):
    train, held_out = triples(data.train), triples(data.validation)
    assert (train[0][:64] != held_out[0]).any()
    assert held_out[1].mean() < train[1].mean()


def test_each_loop_is_to_answer_with_as_many_hops(data):
    K = data.loop_targets
    targets = data.train_targets.read(0, (len(data.train) - 1) * K).reshape(-1, 3, K)
    x, k, _ = triples(data.train)
    for loop in range(1, K + 1):
        answers = hops.FIRST_SYMBOL + hops.powers()[np.minimum(loop, k), x]
        np.testing.assert_array_equal(targets[:, 2, loop - 1], answers)
    assert (targets[:, :2] == data.end_of_text_id).all()


def test_batches_hold_the_targets_of_the_tokens_to_predict(data, monkeypatch):
    monkeypatch.setattr(pipeline, "BLOCK_TOKENS", 1)
    batches = train_batches(data, sequence_length=T, batch_size=4, seed=0, start_step=0)
    batch = next(batches)
    batches.close()
    tokens, targets = batch["tokens"], batch["loop_targets"]
    assert targets.shape == (4, T, hops.MOST_HOPS)
    answers = np.arange(T) % 3 == 1  # the windows begin with a triple
    np.testing.assert_array_equal(targets[:, answers, -1], tokens[:, 1:][:, answers])
    assert (targets[:, ~answers] == data.end_of_text_id).all()


def test_packed_rows_hold_the_targets_of_their_tokens(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "BLOCK_TOKENS", 1)
    packed = prepare("hops", tmp_path / "packed", rows="packed", say=str)
    batches = train_batches(packed, sequence_length=T, batch_size=4, seed=0, start_step=0)
    batch = next(batches)
    batches.close()
    tokens, targets = batch["tokens"], batch["loop_targets"]
    inputs, outputs = tokens[:, :-1], tokens[:, 1:]
    answers = inputs >= hops.FIRST_HOPS
    assert (answers.argmax(1) != 1).any()  # rows begin anywhere in a triple
    np.testing.assert_array_equal(targets[answers][:, -1], outputs[answers])
    assert (targets[~answers] == data.end_of_text_id).all()


def test_answers_alone_are_scored(data):
    for batch in validation_batches(data, sequence_length=T, batch_size=4):
        whole = batch["mask"].any(axis=1)
        ends = batch["tokens"][:, 1:] == data.end_of_text_id
        answers = np.where(ends, batch["mask"], np.arange(T) % 3 == 1)
        np.testing.assert_array_equal(batch["mask"][whole], answers[whole])


def test_prompts_are_words_of_the_task(data):
    tokenizer = data.tokenizer()
    assert tokenizer.decode(tokenizer.encode("17 k3")) == "17 k3"
    with pytest.raises(UserError, match="cannot encode '17 k9'"):
        tokenizer.encode("17 k9")


def test_the_task_is_as_it_is(tmp_path):
    with pytest.raises(UserError, match=r"--vocab_size=300 with --source=hops: its text and voc"):
        prepare("hops", tmp_path, vocab_size=300, say=str)
