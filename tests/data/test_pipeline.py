"""The batch of a step depends on the step alone, and every token is a target once an epoch."""

import threading
from itertools import islice

import numpy as np
import pytest

from looped_jax.data import pipeline, shards
from looped_jax.data.pipeline import count_train_windows, train_batches, validation_batches
from looped_jax.data.prepare import prepare
from looped_jax.errors import UserError

T, B = 32, 6


def batches(data, n, **options):
    asked = {"sequence_length": T, "batch_size": B, "seed": 0, "start_step": 0}
    iterator = train_batches(data, **asked | options)
    taken = [batch["tokens"] for batch in islice(iterator, n)]
    iterator.close()
    return np.stack(taken)


@pytest.fixture(scope="module")
def windows(data):
    """The windows of an epoch, in the order of the text."""
    n = count_train_windows(data, T)
    starts = np.arange(n)[:, None] * T
    return data.train.read(0, len(data.train))[starts + np.arange(T + 1)]


def test_shape_and_type(data):
    assert batches(data, 2).shape == (2, B, T + 1)
    assert batches(data, 1).dtype == np.int32


@pytest.mark.parametrize("block_tokens", [1, 1 << 12, 1 << 16])
def test_each_epoch_visits_every_window_once(data, windows, monkeypatch, block_tokens):
    monkeypatch.setattr(pipeline, "BLOCK_TOKENS", block_tokens)
    n = len(windows)
    rows = batches(data, 3 * n // B + 1).reshape(-1, T + 1)
    epochs = [rows[e * n : (e + 1) * n] for e in range(3)]
    for epoch in epochs:
        assert sorted(map(bytes, epoch)) == sorted(map(bytes, windows))
    assert not (epochs[0] == epochs[1]).all(axis=1).mean() > 0.05
    assert not (epochs[1] == epochs[2]).all(axis=1).mean() > 0.05
    assert not (epochs[0] == windows).all(axis=1).mean() > 0.05


@pytest.mark.parametrize("start", [1, 5, 121, 400])
def test_any_step_can_be_the_first(data, start):
    np.testing.assert_array_equal(
        batches(data, 10, start_step=start), batches(data, 410)[start:][:10]
    )


def test_a_far_step_is_as_near_as_the_first(data):
    assert batches(data, 1, start_step=10**9).shape == (1, B, T + 1)


def test_the_seed_chooses_the_order(data):
    assert (batches(data, 20) == batches(data, 20)).all()
    assert not (batches(data, 20) == batches(data, 20, seed=1)).all()
    # Another seed is no other epoch of the first.
    n = count_train_windows(data, T)
    order = lambda seed, epoch: pipeline.shuffled_windows(np.arange(n) + epoch * n, n, seed)
    assert not (order(0, 1) == order(1, 0)).all()


def test_the_order_is_that_of_all_earlier_runs():
    """A change here would change what a resumed run trains on."""
    positions = np.array([0, 1, 2, 999, 1000, 1001, 5000])
    order = pipeline.shuffled_windows(positions, 1000, seed=7)
    assert order.tolist() == [661, 759, 214, 867, 668, 84, 584]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [2, 3], [0, 2, 5]])
def test_a_process_takes_its_rows_of_the_batch(data, rows):
    whole = batches(data, 30, start_step=11)
    part = batches(data, 30, start_step=11, rows=np.array(rows))
    np.testing.assert_array_equal(part, whole[:, rows])


def test_shards_make_no_difference(data, books, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 777)
    options = {"validation": str(books / "c.txt"), "vocab_size": 300, "say": str}
    split = prepare(str(books), tmp_path / "out", **options)
    np.testing.assert_array_equal(batches(split, 50), batches(data, 50))


@pytest.fixture(scope="module")
def packed(data, books, tmp_path_factory):
    """The books again, to be trained on in packed rows."""
    return prepare(
        str(books), tmp_path_factory.mktemp("data") / "packed", validation=str(books / "c.txt"),
        tokenizer_file=data.tokenizer_path, rows="packed", say=str,
    )  # fmt: skip


def test_packed_rows_hold_every_token_once_an_epoch(packed):
    tokens = packed.train.read(0, 10**6)
    whole = tokens[: len(tokens) // (T + 1) * (T + 1)].reshape(-1, T + 1)
    assert count_train_windows(packed, T) == len(whole)
    assert count_train_windows(packed, len(tokens) - 1) == 1
    rows = batches(packed, 2 * len(whole) // B + 1).reshape(-1, T + 1)
    for epoch in (rows[: len(whole)], rows[len(whole) : 2 * len(whole)]):
        assert sorted(map(bytes, epoch)) == sorted(map(bytes, whole))
    with pytest.raises(UserError, match=f"has {len(tokens)} tokens; one window of sequence_length"):
        count_train_windows(packed, len(tokens))


def test_packed_rows_are_a_function_of_the_step(packed):
    whole = batches(packed, 150)
    np.testing.assert_array_equal(batches(packed, 20, start_step=121), whole[121:141])
    part = batches(packed, 20, start_step=121, rows=np.array([0, 2, 5]))
    np.testing.assert_array_equal(part, whole[121:141, [0, 2, 5]])


def test_rows_belong_to_what_a_run_is_trained_on(data, packed):
    """Held-out text is the same and scored alike; a run does not go on with other rows."""
    np.testing.assert_array_equal(packed.train.read(0, 10**6), data.train.read(0, 10**6))
    assert packed.digest != data.digest
    options = {"sequence_length": T, "batch_size": B}
    pairs = zip(
        validation_batches(packed, **options), validation_batches(data, **options), strict=True
    )
    for one, other in pairs:
        np.testing.assert_array_equal(one["tokens"], other["tokens"])


def test_closing_ends_the_thread(data):
    before = set(threading.enumerate())
    iterator = train_batches(data, sequence_length=T, batch_size=B, seed=0, start_step=0)
    next(iterator)
    started = set(threading.enumerate()) - before
    assert started
    iterator.close()
    for thread in started:
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.mark.parametrize(("length", "size"), [(32, 6), (7, 4), (1, 100), (100_000, 2)])
def test_validation_covers_every_target_once_in_order(data, length, size):
    taken = list(validation_batches(data, sequence_length=length, batch_size=size))
    tokens = np.concatenate([batch["tokens"] for batch in taken])
    mask = np.concatenate([batch["mask"] for batch in taken])
    covered = np.concatenate([batch["bytes"] for batch in taken])
    text = data.validation.read(0, len(data.validation))
    assert tokens.dtype == np.int32
    assert mask.dtype == np.bool_
    assert {batch["tokens"].shape for batch in taken} == {(size, length + 1)}
    assert {batch["bytes"].shape for batch in taken} == {(size, length)}
    np.testing.assert_array_equal(tokens[:, 1:][mask], text[1:])
    np.testing.assert_array_equal(tokens[:, :-1][mask], text[:-1])
    np.testing.assert_array_equal(
        covered[mask], data.validation_bytes.read(0, len(data.validation))[1:]
    )
    assert (covered[~mask] == 0).all()
    assert (tokens[:, 1:][~mask] == data.end_of_text_id).all()


def test_part_of_validation(data):
    options = {"sequence_length": T, "batch_size": 4}
    part = list(validation_batches(data, max_windows=10, **options))
    whole = list(validation_batches(data, **options))
    assert len(part) == 3
    assert sum(int(batch["mask"].sum()) for batch in part) == 10 * T
    for one, other in zip(part[:2], whole, strict=False):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_array_equal(part[2]["mask"], [[True] * T] * 2 + [[False] * T] * 2)
    assert (part[2]["bytes"][2:] == 0).all()
    everything = list(validation_batches(data, max_windows=10**9, **options))
    assert len(everything) == len(whole)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 3], [0, 2, 3], [3]])
def test_a_process_takes_its_rows_of_validation_too(data, rows):
    options = {"sequence_length": 1000, "batch_size": 4}
    whole = list(validation_batches(data, **options))
    part = list(validation_batches(data, rows=np.array(rows), **options))
    for batch, taken in zip(whole, part, strict=True):
        for name in batch:
            np.testing.assert_array_equal(taken[name], batch[name][rows])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sequence_length": 10**6},
            r"has \d+ tokens; one window of sequence_length=1000000 takes ",
        ),
        ({"sequence_length": 0}, r"sequence_length=0 has to be 1 or more"),
        ({"batch_size": 0}, r"batch_size=0 has to be 1 or more"),
        ({"seed": -1}, r"seed=-1 and start_step=0 have to be 0 or more"),
        ({"start_step": -1}, r"seed=0 and start_step=-1 have to be 0 or more"),
    ],
)
def test_what_does_not_fit_is_refused(data, options, message):
    with pytest.raises(UserError, match=message):
        batches(data, 1, **options)


def test_wrong_validation_is_refused_at_once(data):
    with pytest.raises(UserError, match=r"batch_size=0 has to be 1 or more"):
        validation_batches(data, sequence_length=T, batch_size=0)
    with pytest.raises(UserError, match=r"max_windows=0 have to be 1 or more"):
        validation_batches(data, sequence_length=T, batch_size=6, max_windows=0)
