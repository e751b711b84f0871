"""Any text survives, training repeats itself, and bytes are attributed exactly."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from looped_jax.data import tokenizer
from looped_jax.data.sources import pieces
from looped_jax.data.sources.pieces import END_OF_TEXT
from looped_jax.errors import UserError

AWKWARD = "naïve “quotes” — 日本語 🙂\r\n\tx  y" + END_OF_TEXT + "\x00 end "


@pytest.fixture(scope="module")
def trained(novel):
    return tokenizer.train([novel[:100_000]], 400)


@pytest.fixture
def lossy(tmp_path):
    """A word-level tokenizer.json, which drops white space and has its own end of text."""
    vocab = {"<unk>": 0, "</s>": 1, "two": 2, "words": 7}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["</s>"])
    backend.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


def test_the_vocabulary_is_as_asked_for(trained):
    assert trained.vocab_size == 400
    assert trained.end_of_text_id == 0
    assert trained.decode([0]) == END_OF_TEXT


def test_any_text_survives(trained):
    assert trained.decode(trained.encode(AWKWARD)) == AWKWARD
    every_character = "".join(map(chr, [*range(0xD800), *range(0xE000, 0xFFFF, 7)]))
    assert trained.decode(trained.encode(every_character)) == every_character


def test_text_never_encodes_to_end_of_text(trained):
    assert trained.end_of_text_id not in trained.encode(AWKWARD)


def test_a_batch_is_its_texts(trained, novel):
    texts = [novel[i : i + 500] for i in range(0, 5000, 500)] + ["", AWKWARD]
    batch, pairs = trained.encode_batch(texts), trained.encode_and_measure(texts)
    for text, ids, measured in zip(texts, batch, pairs, strict=True):
        np.testing.assert_array_equal(ids, trained.encode(text))
        np.testing.assert_array_equal(ids, measured.ids)


def test_pieces_have_the_tokens_of_the_whole(trained, novel, monkeypatch):
    whole = trained.encode(novel[:50_000])
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 1000)
    parts = [trained.encode(piece.text) for piece in pieces.cut(novel[:50_000])]
    assert len(parts) > 40
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_training_repeats_itself_on_any_number_of_threads(trained, novel, tmp_path):
    (tmp_path / "text").write_text(novel[:100_000], "utf-8", newline="")
    program = (
        "import sys; from looped_jax.data import tokenizer\n"
        "text = open(sys.argv[1], encoding='utf-8', newline='').read()\n"
        "sys.stdout.write(tokenizer.train([text], 400).to_json())"
    )
    again = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "text"],
        env=os.environ | {"RAYON_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
    )
    assert again.stdout.decode() == trained.to_json()


def test_a_saved_tokenizer_loads(trained, tmp_path):
    (tmp_path / "t.json").write_text(trained.to_json(), "utf-8")
    loaded = tokenizer.load(tmp_path / "t.json")
    assert (loaded.vocab_size, loaded.end_of_text_id) == (400, 0)
    np.testing.assert_array_equal(loaded.encode(AWKWARD), trained.encode(AWKWARD))


def test_bytes_of_ascii_tokens_are_their_lengths(trained, novel):
    text = "It was a plain text, with 12 commas and so on.\n\nNext   one."
    [(ids, widths, *_)] = trained.encode_and_measure([text])
    assert [len(trained.decode([i])) for i in ids] == widths.tolist()


@pytest.mark.parametrize("text", ["", "é", "🙂", AWKWARD, "  two   words  "])
def test_bytes_add_up_to_the_text(trained, lossy, text):
    for each in (trained, tokenizer.load(lossy, "</s>")):
        [(ids, widths, *_)] = each.encode_and_measure([text])
        assert len(ids) == len(widths)
        assert (widths >= 0).all()
        assert widths.sum() == (len(text.encode()) if len(ids) else 0)


def test_dropped_bytes_count_at_the_next_token(lossy):
    words = tokenizer.load(lossy, "</s>")
    [(ids, widths, *_)] = words.encode_and_measure(["  two   words "])
    assert (ids.tolist(), widths.tolist()) == ([2, 7], [5, 9])
    assert words.vocab_size == 8


def test_a_small_vocabulary_is_refused():
    with pytest.raises(UserError, match=r"--vocab_size=256: .* 257 or more"):
        tokenizer.train(["a"], 256)


def test_unusable_tokenizer_files(tmp_path, lossy):
    with pytest.raises(UserError, match=r"cannot read tokenizer .*none\.json: No such file"):
        tokenizer.load(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UserError, match=r"a\.json is not a tokenizer\.json: "):
        tokenizer.load(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"a\.json is not a tokenizer\.json: it is not text"):
        tokenizer.load(tmp_path / "a.json")
    with pytest.raises(UserError, match=r"has no token '<\|endoftext\|>': .*tokens: '</s>'\)"):
        tokenizer.load(lossy)
