"""Streamed text is whole characters, adds up to the text, and shows nothing of a stop string."""

import numpy as np
import pytest

from looped_jax.data import tokenizer as tokenizers
from looped_jax.generation.row_text import RowText


@pytest.fixture(scope="module")
def bytewise():
    """Every byte is a token, so that characters are spelled by up to four of them."""
    return tokenizers.train(["aaaa"], 257)


def streamed(tokenizer, ids, stops=()):
    row = RowText(tokenizer, tokenizer.encode("It was").tolist(), stops)
    pieces = []
    for token in ids:
        pieces.append(row.push(token))
        if row.stopped:
            break
    pieces.append(row.finish())
    assert "".join(pieces) == row.text
    return pieces


def test_characters_are_released_whole(bytewise):
    text = "é “été” 😀!"
    ids = bytewise.encode(text)
    assert len(ids) == len(text.encode())
    pieces = streamed(bytewise, ids)
    assert "".join(pieces) == text
    assert [piece for piece in pieces if piece] == list(text)


def test_bytes_that_form_no_character_are_shown_in_the_end(bytewise):
    ids = bytewise.encode("é😀").tolist()
    assert "".join(streamed(bytewise, ids[:-1])) == bytewise.decode(ids[:-1])
    garbage = np.random.default_rng(0).integers(1, 257, 200).tolist()
    assert "".join(streamed(bytewise, garbage)) == bytewise.decode(garbage)


def test_a_stop_string_and_what_follows_are_not_shown(bytewise):
    ids = bytewise.encode("one\n\ntwo")
    pieces = streamed(bytewise, ids, ["\n\n"])
    assert "".join(pieces) == "one"
    # A single newline waits until it is known not to be a stop.
    ids = bytewise.encode("a\nb\n\nc")
    pieces = streamed(bytewise, ids, ["\n\n"])
    assert pieces[:3] == ["a", "", "\nb"]
    assert "".join(pieces) == "a\nb"


def test_the_first_of_several_stops_counts(bytewise):
    assert "".join(streamed(bytewise, bytewise.encode("x END y STOP"), ["STOP", "END"])) == "x "
    assert "".join(streamed(bytewise, bytewise.encode("x EN"), ["END"])) == "x EN"


def test_a_stop_string_may_lie_within_one_token():
    tokenizer = tokenizers.train(["one.two " * 50], 300)
    text = "one.two one.two"
    assert len(tokenizer.encode(text)) < len(text)
    assert "".join(streamed(tokenizer, tokenizer.encode(text), ["e.t"])) == "on"
