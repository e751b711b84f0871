"""Shards read as one stream, and damage is found."""

import json
import shutil

import numpy as np
import pytest

from looped_jax.data import shards
from looped_jax.data.shards import ShardWriter, TokenData, TokenStream
from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json


@pytest.fixture
def stream(tmp_path, monkeypatch):
    """The numbers 0 … 999 in shards of 64, written a few at a time."""
    monkeypatch.setattr(shards, "SHARD_TOKENS", 64)
    writer = ShardWriter(tmp_path, "train", 0, "uint16")
    for part in np.split(np.arange(1000), [1, 2, 100, 101, 500]):
        writer.add(part)
    entry = writer.finish()
    assert entry["length"] == 1000
    assert [s["length"] for s in entry["shards"]] == [64] * 15 + [40]
    return TokenStream(tmp_path, entry["shards"], entry["dtype"])


@pytest.fixture
def copy(data, tmp_path):
    """A copy of prepared data that a test may damage."""
    shutil.copytree(data.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_reading_across_shards(stream):
    assert len(stream) == 1000
    np.testing.assert_array_equal(stream.read(60, 200), np.arange(60, 260))
    np.testing.assert_array_equal(stream.read(990, 200), np.arange(990, 1000))
    assert stream.read(0, 0).shape == (0,)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_windows_across_shards(stream, length):
    starts = np.random.default_rng(0).permutation(1000 - length + 1)
    windows = stream.windows(starts, length)
    assert windows.dtype == np.int32
    np.testing.assert_array_equal(windows, starts[:, None] + np.arange(length))


def test_large_ids_keep_their_value(tmp_path):
    writer = ShardWriter(tmp_path, "train", 0, "uint32")
    writer.add(np.array([70_000, 151_935]))
    entry = writer.finish()
    stream = TokenStream(tmp_path, entry["shards"], entry["dtype"])
    np.testing.assert_array_equal(stream.read(0, 2), [70_000, 151_935])


def test_an_intact_folder_verifies(data):
    data.verify()
    assert TokenData.open(data.folder).digest == data.digest


def test_a_missing_folder_says_how_to_make_it(tmp_path):
    with pytest.raises(UserError, match=r"none does not exist: make it with python -m looped_jax"):
        TokenData.open(tmp_path / "none")
    with pytest.raises(UserError, match="holds no prepared data"):
        TokenData.open(tmp_path)


def test_another_format_is_refused(copy):
    write_json(copy / "manifest.json", read_json(copy / "manifest.json") | {"format": 99})
    with pytest.raises(UserError, match=r"format 99; this version reads 1"):
        TokenData.open(copy)


def test_a_missing_shard_is_named(copy):
    (copy / "train-00000.npy").unlink()
    with pytest.raises(UserError, match=r"train-00000\.npy is missing"):
        TokenData.open(copy)


def test_a_cut_shard_is_named(copy):
    shard = copy / "validation-00000.npy"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"validation-00000\.npy is damaged"):
        TokenData.open(copy)


def test_a_shard_of_another_length_is_named(copy):
    np.save(copy / "train-00000.npy", np.zeros(7, np.uint16))
    with pytest.raises(UserError, match=r"holds uint16\[7\], but its manifest says uint16\[\d+\]"):
        TokenData.open(copy)


@pytest.mark.parametrize("name", ["train-00000.npy", "tokenizer.json"])
def test_verify_finds_a_flipped_bit(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[-2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is not the file that was prepared"):
        TokenData.open(copy).verify()


def test_verify_finds_a_missing_tokenizer(copy):
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        TokenData.open(copy).verify()


def test_what_stays_closed_is_neither_needed_nor_read(copy):
    for shard in copy.glob("train-*"):
        shard.unlink()
    data = TokenData.open(copy, ("validation", "validation-bytes"))
    data.verify()
    assert (len(data.train), data.opened) == (0, ("validation", "validation-bytes"))
    assert len(data.validation) == len(data.validation_bytes) > 0


def test_verify_tells_what_it_has_read(data):
    assert sum(data.verified()) == data.size == sum(path.stat().st_size for path in data.digests)


def rewritten(copy, change):
    """The manifest changed, and signed again, as somebody who wants to would."""
    manifest = read_json(copy / "manifest.json")
    change(manifest)
    del manifest["digest"]
    shards.write_manifest(copy, manifest)


FALSE = {
    "no tokenizer": (lambda m: m.pop("tokenizer"), "has no key 'tokenizer'"),
    "a list for a table": (lambda m: m.update(streams=[]), "streams is of type list"),
    "no digest of a tokenizer": (lambda m: m["tokenizer"].pop("sha256"), "has no key 'sha256'"),
    "an id that is text": (
        lambda m: m["tokenizer"].update(end_of_text_id="0"), "end_of_text_id is of type str",
    ),
    "an id beyond the vocabulary": (
        lambda m: m["tokenizer"].update(end_of_text_id=300), "is not below its vocab_size",
    ),
    "no validation": (lambda m: m["splits"].pop("validation"), "has no key 'validation'"),
    "one token": (lambda m: m["splits"]["train"].update(tokens=1), "tokens = 1; allowed"),
    "another number of tokens": (
        lambda m: m["splits"]["train"].update(tokens=7), "stream train has length .* counts: 7",
    ),
    "a stream of another length": (
        lambda m: m["streams"]["train"].update(length=7), "length = 7; allowed: that of its",
    ),
    "other rows": (lambda m: m.update(rows="torn"), "rows = 'torn'; allowed: windows, packed"),
    "objects": (lambda m: m["streams"]["train"].update(dtype="object"), "dtype; allowed: uint16"),
    "a file elsewhere": (
        lambda m: m["streams"]["train"]["shards"][0].update(file="../../x.npy"),
        "file '../../x.npy'; allowed: a .npy file beside it",
    ),
    "a shard that is no table": (
        lambda m: m["streams"]["train"].update(shards=["x.npy"]), "shard 0 is no table",
    ),
    "a negative length": (
        lambda m: m["streams"]["train"]["shards"][0].update(length=-1), "length = -1; allowed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FALSE)
def test_a_manifest_with_missing_or_false_keys(copy, case):
    change, message = FALSE[case]
    rewritten(copy, change)
    with pytest.raises(UserError, match=message) as raised:
        TokenData.open(copy)
    assert "\n" not in str(raised.value)


def test_every_field_of_the_manifest_is_under_its_digest(copy):
    whole = read_json(copy / "manifest.json")
    for keys in (("splits", "validation", "bytes"), ("tokenizer", "end_of_text_id"),
                 ("unspelled", "train"), ("request", "source"), ("versions", "numpy")):  # fmt: skip
        changed = json.loads(json.dumps(whole))
        branch = changed
        for key in keys[:-1]:
            branch = branch[key]
        branch[keys[-1]] = 1 if isinstance(branch[keys[-1]], int | float) else "other"
        write_json(copy / "manifest.json", changed)
        with pytest.raises(UserError, match=r"does not match its digest: it was changed by hand"):
            TokenData.open(copy)
    del whole["digest"]
    write_json(copy / "manifest.json", whole)
    with pytest.raises(UserError, match=r"has no digest of its own: prepare the data again"):
        TokenData.open(copy)


def test_what_is_counted_belongs_to_the_datas_digest(copy, data):
    rewritten(copy, lambda m: m["splits"]["validation"].update(bytes=5))
    assert TokenData.open(copy).digest != data.digest
    rewritten(copy, lambda m: m["splits"].update(data.manifest["splits"]))
    rewritten(copy, lambda m: m["request"].update(source="elsewhere"))
    assert TokenData.open(copy).digest == data.digest


@pytest.mark.parametrize("content", ["[" * 100_000, "7", "[]"])
def test_a_manifest_that_is_no_table(copy, content):
    (copy / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"is nested too deeply|is no table of keys and values"):
        TokenData.open(copy)


def test_a_shard_that_is_an_archive(copy):
    with open(copy / "train-00000.npy", "wb") as file:
        np.savez(file, a=np.zeros(3))
    with pytest.raises(UserError, match=r"train-00000\.npy is damaged"):
        TokenData.open(copy)
