"""Mixtures of prepared folders: shares, whole documents, one tokenizer."""

import json

import numpy as np
import pytest

from looped_jax.data import shards
from looped_jax.data.mix import Part, mix, parse_parts
from looped_jax.data.prepare import prepare
from looped_jax.errors import UserError


@pytest.fixture(scope="module")
def parts(data, tmp_path_factory):
    """Two folders of short documents with the tokenizer of the books, of several shards each."""
    root = tmp_path_factory.mktemp("parts")
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_TOKENS", 700)
        for name, count in (("web", 300), ("books", 100)):
            lines = [json.dumps({"text": f"{name} document {i}"}) for i in range(count)]
            (root / f"{name}.jsonl").write_text("\n".join(lines))
            made.append(prepare(
                str(root / f"{name}.jsonl"), root / name, validation="0.1",
                tokenizer_file=data.tokenizer_path, say=str,
            ))  # fmt: skip
    return made


def texts(data, stream):
    return data.tokenizer().decode(stream.read(0, len(stream))).split("<|endoftext|>")[:-1]


def test_shares_of_whole_documents(parts, tmp_path):
    web, books = parts
    weights = [Part(web.folder, 1.0), Part(books.folder, 1.0)]
    mixed = mix(weights, tmp_path / "out", str)
    mixed.verify()
    found = texts(mixed, mixed.train)
    of_web = [text for text in found if text.startswith("web")]
    assert found[len(of_web) :] == texts(books, books.train)  # the smaller part is used up
    assert of_web == texts(web, web.train)[: len(of_web)]
    longest = len(books.train)
    assert longest - 40 < len(mixed.train) - longest <= longest
    assert mixed.manifest["splits"]["train"]["documents"] == len(found)
    for name in ("validation", "validation_bytes"):
        both = [getattr(part, name).read(0, 10**6) for part in parts]
        np.testing.assert_array_equal(getattr(mixed, name).read(0, 10**6), np.concatenate(both))
    said = []
    assert mix(weights, tmp_path / "out", said.append).digest == mixed.digest
    assert said == [f"{tmp_path / 'out'} is already mixed"]
    with pytest.raises(UserError, match="holds other data: choose another --out"):
        mix(weights[::-1], tmp_path / "out", str)


def test_parts_that_do_not_go_together(parts, data, books, tmp_path):
    other = prepare(str(books), tmp_path / "b", validation=str(books / "c.txt"), vocab_size=280,
                    say=str)  # fmt: skip
    packed = prepare(str(books), tmp_path / "p", validation=str(books / "c.txt"), rows="packed",
                     tokenizer_file=data.tokenizer_path, say=str)  # fmt: skip
    with pytest.raises(UserError, match=r"p has rows=packed; allowed: windows, as .*web has"):
        mix([Part(parts[0].folder, 1.0), Part(packed.folder, 1.0)], tmp_path / "out", str)
    with pytest.raises(UserError, match=r"b has another tokenizer than .*web; allowed: one"):
        mix([Part(parts[0].folder, 1.0), Part(other.folder, 1.0)], tmp_path / "out", str)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("texts", [["a:0.5", "b"], ["a:0.5", "b:0"], ["a:1", "b:x"], ["a:1"]])
def test_wrong_parts(texts):
    with pytest.raises(UserError, match=r"--parts=.*; allowed: "):
        parse_parts(texts)
