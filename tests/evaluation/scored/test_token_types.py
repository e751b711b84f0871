"""The kind of a token, by its characters and what stands before it."""

import pytest

from looped_jax.evaluation.scored.token_types import TYPES, token_type, token_types


@pytest.mark.parametrize(
    ("before", "text", "expected"),
    [
        ("the", " ", "whitespace"),
        ("the", "\n\n", "whitespace"),
        ("the", " cat", "word start"),
        ("\n", "The", "word start"),
        ("", "The", "word start"),
        ("“", "The", "word start"),
        ("th", "ere", "word continuation"),
        ("é", "té", "word continuation"),
        ("don’", "t", "word continuation"),
        ("don", "'t", "word continuation"),
        ("said ’", "T", "word start"),
        ("well", "-known", "word start"),
        ("end.", "Next", "word start"),
        ("page ", "12", "number"),
        ("page", " 1,", "number"),
        ("12", "th", "word start"),
        ("word", ",", "punctuation"),
        ("word", " —", "punctuation"),
        ("word", "\ufffd", "other"),
        ("word", "", "other"),
    ],
)
def test_types(before, text, expected):
    assert token_type(text, before) == expected
    assert expected in TYPES


def test_a_run_of_tokens_sees_what_came_before():
    texts = ["Eli", "za", ",", "\n", "eb", "<|endoftext|>", "za", " don", "’", "t"]
    special = [text == "<|endoftext|>" for text in texts]
    assert token_types(texts, special, before="Miss ") == [
        "word start", "word continuation", "punctuation", "whitespace", "word start", "other",
        "word start", "word start", "punctuation", "word continuation",
    ]  # fmt: skip
