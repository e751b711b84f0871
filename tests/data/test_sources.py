"""Every kind of source gives its documents, each whole and on one side of the split only."""

import gzip
import hashlib
import json
import lzma
import os
import sys
import types
from itertools import pairwise

import pyarrow
import pyarrow.parquet
import pytest

from looped_jax.data.sources import files
from looped_jax.data.sources import pieces as pieces_module
from looped_jax.data.sources.files import FileInput
from looped_jax.data.sources.pieces import END_OF_TEXT, cut, split_documents
from looped_jax.data.sources.reading import Reading
from looped_jax.data.sources.source import open_source
from looped_jax.data.sources.tfds import parse_tfds
from looped_jax.errors import UserError


def documents(source, split="train"):
    whole, current = [], ""
    for piece in source.pieces(split):
        current += piece.text
        if piece.ends_document:
            whole.append(current)
            current = ""
    assert current == ""
    return whole


def documents_of(path, **options):
    return documents(
        open_source(str(path), "0.5", **{"text_field": "text", **options})
    ) + documents(open_source(str(path), "0.5", **{"text_field": "text", **options}), "validation")


def test_bundled_holds_out_one_novel(novel):
    source = open_source("bundled", None, "text")
    assert documents(source, "validation") == [novel]
    train = documents(source)
    assert len(train) == 6
    assert sum(len(text.encode()) for text in train) == 4_760_739
    assert novel not in train


def test_bundled_validation_is_fixed():
    with pytest.raises(UserError, match=r"--validation=x with --source=bundled"):
        open_source("bundled", "x", "text")


TEXTS = [f"Document {i}.\r\nZeile — zwei.\n" for i in range(20)]


def write_text(path):
    path.write_text(END_OF_TEXT.join(TEXTS), "utf-8", newline="")


def write_text_xz(path):
    path.write_bytes(lzma.compress(END_OF_TEXT.join(TEXTS).encode()))


def write_jsonl(path):
    path.write_text("\n\n".join(json.dumps({"id": 1, "text": t}) for t in TEXTS), "utf-8")


def write_jsonl_gz(path):
    path.write_bytes(gzip.compress("\n".join(json.dumps({"text": t}) for t in TEXTS).encode()))


def write_parquet(path):
    pyarrow.parquet.write_table(pyarrow.table({"id": range(20), "text": TEXTS}), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.txt", write_text),
        ("a.txt.xz", write_text_xz),
        ("a.jsonl", write_jsonl),
        ("a.jsonl.gz", write_jsonl_gz),
        ("a.parquet", write_parquet),
    ],
)
def test_every_kind_of_file_gives_its_documents_unchanged(tmp_path, name, write):
    write(tmp_path / name)
    assert sorted(documents_of(tmp_path / name)) == sorted(TEXTS)


def test_a_folder_a_glob_and_a_named_validation_file(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.txt", "deep/c.txt", "picture.png"):
        (tmp_path / name).write_text(name)
    held_out = str(tmp_path / "deep" / ".." / "a.txt")
    assert documents(open_source(str(tmp_path), held_out, "text")) == ["b.txt", "deep/c.txt"]
    pattern = open_source(str(tmp_path / "*.txt"), held_out, "text")
    assert documents(pattern) == ["b.txt"]
    assert documents(pattern, "validation") == ["a.txt"]


def test_a_fraction_parts_documents_by_their_content(tmp_path):
    rows = [{"text": f"document {i % 500}"} for i in range(1000)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = open_source(str(tmp_path / "a.jsonl"), "0.2", "text")
    train, validation = documents(source), documents(source, "validation")
    assert sorted(train + validation) == sorted(row["text"] for row in rows)
    assert not set(train) & set(validation)
    assert 60 <= len(set(validation)) <= 140  # 100 expected of 500, standard deviation 9
    wider = documents(open_source(str(tmp_path / "a.jsonl"), "0.4", "text"), "validation")
    assert set(validation) < set(wider)


def test_a_fraction_never_parts_a_long_document(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces_module, "PIECE_CHARACTERS", 30)
    texts = [f"document {i} " + "and so on " * 20 for i in range(40)]
    (tmp_path / "a.txt").write_text(END_OF_TEXT.join(texts))
    source = open_source(str(tmp_path), "0.5", "text")
    train, validation = documents(source), documents(source, "validation")
    assert sorted(train + validation) == sorted(texts)
    assert train
    assert validation


def test_long_documents_come_in_pieces_cut_between_words(monkeypatch):
    monkeypatch.setattr(pieces_module, "PIECE_CHARACTERS", 100)
    text = "Some words, of varied lengths; and 12 345 numbers.\n\n" * 40
    pieces = list(cut(text))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece.text) <= 200 for piece in pieces)
    for before, after in pairwise(pieces):
        assert before.text[-1].isalpha()
        assert after.text[0] == " "
        assert after.text[1].isalpha()
    assert [len(piece.text) for piece in cut("x" * 500)] == [100, 100, 100, 200]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_separators_are_found_across_chunks(monkeypatch, size):
    monkeypatch.setattr(pieces_module, "PIECE_CHARACTERS", 30)
    texts = ["one two three " * 20, " \n", "four\n", "<|endof" * 30, "five six " * 9, ""]
    stream = END_OF_TEXT.join(texts)
    chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
    whole, current = [], ""
    for piece in split_documents(chunks):
        current += piece.text
        if piece.ends_document:
            whole.append(current)
            current = ""
    assert whole == [text for text in texts if text.strip()]
    assert current == ""


def test_progress_is_counted(books):
    source = open_source(str(books), str(books / "c.txt"), "text")
    list(source.pieces("train"))
    assert [each.consumed for each in source.train] == [each.size for each in source.train]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", r"a\.txt is empty"),
        ("a.pdf", "x", r"a\.pdf is not one of \.txt, .*\.parquet \("),
        ("a.parquet.gz", "x", r"a\.parquet\.gz is not one of"),
        ("a.txt", b"caf\xe9 au", r"a\.txt is not UTF-8: "),
        ("a.txt.xz", "no xz", r"cannot decompress .*a\.txt\.xz"),
        ("a.txt.xz", lzma.compress(b"abc" * 99)[:-9], r"cannot decompress .*a\.txt\.xz"),
        ("a.txt.gz", "no gzip", r"cannot decompress .*a\.txt\.gz"),
        ("a.parquet", "PAR1", r"a\.parquet is not a parquet file"),
        ("a.jsonl", '{"text": "a"}\n{"text"', r"a\.jsonl line 2 is not JSON"),
        ("a.jsonl", "[1]", r"a\.jsonl line 1 is no record with fields but a list"),
        ("a.jsonl", '{"body": "a"}', r"line 1 has no field 'text' \(--text_field\); it has 'body'"),
        ("a.jsonl", '{"text": 3}', r"line 1: field 'text' is not text but int"),
        ("a.jsonl", r'{"text": "\ud800"}', r"line 1: field 'text' is not UTF-8"),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        documents_of(path)


def test_a_parquet_file_without_the_field(tmp_path):
    write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"no field 'body' \(--text_field\); it has 'id', 'text'"):
        documents_of(tmp_path / "a.parquet", text_field="body")


@pytest.mark.parametrize(
    ("source", "validation", "message"),
    [
        ("none.txt", "0.1", r"--source=none\.txt: no such file or folder"),
        (".", "0.1", r"--source=\.: no file in this folder is one of \.txt"),
        ("c.txt", None, r"--source=c\.txt needs --validation"),
        ("c.txt", "1.5", r"--validation=1\.5: a fraction of documents lies between 0 and 1"),
        ("c.txt", "nan", r"--validation=nan: a fraction"),
        ("c.txt", "none.txt", r"--validation=none\.txt: no such file"),
        ("c.txt", "c.txt", r"--validation=c\.txt holds out all of --source=c\.txt"),
    ],
)
def test_unusable_calls_are_named(tmp_path, books, monkeypatch, source, validation, message):
    monkeypatch.chdir(tmp_path if source == "." else books)
    with pytest.raises(UserError, match=message):
        open_source(source, validation, "text")


@pytest.mark.parametrize(
    ("spec", "parsed"),
    [
        ("tfds:lm1b", ("lm1b", "train")),
        ("tfds:lm1b:test", ("lm1b", "test")),
        ("tfds:lm1b:1.1.0", ("lm1b:1.1.0", "train")),
        ("tfds:wiki40b/en:1.3.0:train[:50%]", ("wiki40b/en:1.3.0", "train[:50%]")),
    ],
)
def test_tfds_names(spec, parsed):
    assert parse_tfds(spec) == parsed


def test_tfds_without_a_name():
    with pytest.raises(UserError, match=r"tfds: is not tfds:NAME or tfds:NAME:SPLIT"):
        open_source("tfds:", "0.1", "text")


class RecordedBuilder:
    """What is used of a TFDS builder, with the answers TFDS 4.9 gives."""

    def __init__(self, name, file_format):
        assert file_format == "array_record"
        if name != "tales":
            raise LookupError(f"Dataset {name} not found.\nMore lines.")
        split = types.SimpleNamespace(num_bytes=99, shard_lengths=[3])
        splits = {"train": split, "test": split}
        self.info = types.SimpleNamespace(full_name="tales/1.0.0", splits=splits)

    def download_and_prepare(self, file_format):
        assert file_format == "array_record"

    def as_data_source(self, split):
        return [{"text": f"{split} tale {i}: é".encode()} for i in range(3)]


def test_tfds_records_are_documents(monkeypatch):
    module = types.ModuleType("tensorflow_datasets")
    module.builder = RecordedBuilder
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    source = open_source("tfds:tales", "tfds:tales:test", "text")
    assert documents(source) == [f"train tale {i}: é" for i in range(3)]
    assert documents(source, "validation") == [f"test tale {i}: é" for i in range(3)]
    assert source.train[0].sha256() != source.validation[0].sha256()
    assert source.train[0].consumed == source.train[0].size == 3
    with pytest.raises(UserError, match=r"cannot open tfds:no with TFDS: Dataset no not found\.$"):
        open_source("tfds:no", "0.1", "text")
    with pytest.raises(UserError, match=r"--validation=tfds:tales:train holds out all of"):
        open_source("tfds:tales", "tfds:tales:train", "text")


@pytest.mark.filterwarnings("default")
def test_tfds_itself(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))

    class LoopedTales(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):
            return {"train": self._generate_examples(5), "test": self._generate_examples(2)}

        def _generate_examples(self, n):
            for i in range(n):
                yield i, {"text": f"tale {i} of {n}: é"}

    LoopedTales(data_dir=tmp_path, file_format="array_record").download_and_prepare(
        file_format="array_record"
    )
    source = open_source("tfds:looped_tales", "tfds:looped_tales:test", "text")
    assert sorted(documents(source)) == [f"tale {i} of 5: é" for i in range(5)]
    assert sorted(documents(source, "validation")) == [f"tale {i} of 2: é" for i in range(2)]
    assert len(source.train[0].sha256()) == 64
    with pytest.raises(UserError, match="Unknown split 'nope'"):
        open_source("tfds:looped_tales:nope", "0.5", "text")


def write_json_records(path):
    path.write_text(json.dumps([{"text": text} for text in TEXTS], indent=1), "utf-8")


def write_json_lines(path):
    path.write_text("\n".join(json.dumps({"text": t}) for t in TEXTS), "utf-8")


def write_json_gz(path):
    path.write_bytes(gzip.compress("\n".join(json.dumps({"text": t}) for t in TEXTS).encode()))


def write_jsonl_zst(path):
    """Two frames, as tools that append write them."""
    lines = [json.dumps({"text": text}) + "\n" for text in TEXTS]
    halves = ("".join(lines[:7]).encode(), "".join(lines[7:]).encode())
    codec = pyarrow.Codec("zstd")
    path.write_bytes(b"".join(codec.compress(half, asbytes=True) for half in halves))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.json", write_json_records),
        ("a.json", write_json_lines),
        ("a.json.gz", write_json_gz),
        ("a.jsonl.zst", write_jsonl_zst),
    ],
)
def test_json_in_one_value_or_lines_plain_or_compressed(tmp_path, name, write):
    write(tmp_path / name)
    assert sorted(documents_of(tmp_path / name)) == sorted(TEXTS)


def test_a_single_record_over_several_lines(tmp_path):
    (tmp_path / "a.json").write_text('{\n "text":\n "It was"\n}')
    assert documents(open_source(str(tmp_path / "a.json"), "0.5", "text")) in ([], ["It was"])


def test_a_folder_says_what_it_reads_and_skips(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "tokens").mkdir()
    for name in (
        "a.txt", "b.txt", ".hidden.txt", ".git/c.txt", "picture.png",
        "tokens/train-00000.npy", "tokens/tokenizer.json",
    ):  # fmt: skip
        (tmp_path / name).write_text(name)
    source = open_source(str(tmp_path), str(tmp_path / "b.txt"), "text")
    assert documents(source) == ["a.txt"]
    assert source.notes == (
        f"--source={tmp_path} reads 2 files: a.txt, b.txt",
        f"--source={tmp_path} skips 5 files: .git/c.txt, .hidden.txt, picture.png, "
        "tokens/tokenizer.json, tokens/train-00000.npy",
    )


def test_a_folder_of_several_kinds_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("# Corpus")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    for spec in (tmp_path, tmp_path / "*"):
        with pytest.raises(UserError, match=r"holds files of 2 kinds \(json: a\.jsonl; text: READ"):
            open_source(str(spec), "0.1", "text")
    assert documents(open_source(str(tmp_path / "*.jsonl"), "0.000001", "text")) == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.zst", b"no zstd", r"cannot (read|decompress) .*a\.jsonl\.zst"),
        ("a.json", "[" * 100_000, r"a\.json is not JSON to read: it is nested too deeply"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl line 1 is not JSON to read: it is nested too deepl"),
        ("a.json", '[{"text": "a"}, 3]', r"a\.json record 2 is no record with fields but a int"),
        ("a.json", "7", r"a\.json record 1 is no record with fields but a int"),
        ("a.json", "\n", r"a\.json line 1 has no field 'text'"),
    ],
)  # fmt: skip
def test_json_that_cannot_be_read(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        documents_of(write(tmp_path / name, content))


def test_a_cut_zstd_file(tmp_path):
    write_jsonl_zst(tmp_path / "a.jsonl.zst")
    whole = (tmp_path / "a.jsonl.zst").read_bytes()
    (tmp_path / "a.jsonl.zst").write_bytes(whole[:-20])
    with pytest.raises(UserError, match=r"cannot (read|decompress) .*a\.jsonl\.zst"):
        documents_of(tmp_path / "a.jsonl.zst")


class StreamedSet:
    """What is used of a streamed data set of the package `datasets`."""

    num_shards = 2
    info = types.SimpleNamespace(version="1.0.0", splits=None)

    def shard(self, num_shards, index):
        return [{"text": f"tale {i}"} for i in range(4)][index::num_shards]


def test_shards_of_the_hub_are_inputs(monkeypatch):
    asked = []
    module = types.ModuleType("datasets")

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return StreamedSet()

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    source = open_source("hf:tales/edu:sample:test", "0.0001", "text")
    assert asked == [(("tales/edu", "sample"), {"split": "test", "streaming": True})]
    assert [each.name for each in source.train] == [
        "hf:tales/edu:sample:test:0-of-2", "hf:tales/edu:sample:test:1-of-2",
    ]  # fmt: skip
    assert documents(source) == ["tale 0", "tale 2", "tale 1", "tale 3"]
    assert source.train[0].sha256() != source.train[1].sha256()
    with pytest.raises(UserError, match=r"hf::; allowed: hf:REPO, hf:REPO:CONFIG or"):
        open_source("hf::", "0.1", "text")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"hf:tales needs the package datasets: pip install data"):
        open_source("hf:tales", "0.1", "text")


def write_parquet_of_columns(path):
    """The text between other columns, in groups of three rows."""
    columns = {"id": list(range(20)), "text": TEXTS, "url": ["u" * 5000 + t for t in TEXTS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=3)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.txt", write_text),
        ("a.txt.xz", write_text_xz),
        ("a.jsonl", write_jsonl),
        ("a.jsonl.gz", write_jsonl_gz),
        ("a.jsonl.zst", write_jsonl_zst),
        ("a.parquet", write_parquet_of_columns),
    ],
)
def test_the_digest_comes_with_the_reading(tmp_path, monkeypatch, name, write):
    """Of all bytes of the file, and every byte but a parquet file's end is read once."""
    file, read = tmp_path / name, []
    write(file)
    of_file = FileInput(file, "text")
    count = lambda call: lambda *args: read.append(found := call(*args)) or found
    monkeypatch.setattr(os, "preadv", count(os.preadv))
    monkeypatch.setattr(os, "pread", count(os.pread))
    monkeypatch.setattr(files, "sha256_of_file", pytest.fail)
    assert "".join(piece.text for piece in of_file.pieces()) == "".join(TEXTS)
    assert of_file.sha256() == hashlib.sha256(file.read_bytes()).hexdigest()
    assert sum(n if isinstance(n, int) else len(n) for n in read) == file.stat().st_size


def test_a_reading_that_goes_back_digests_every_byte_once(tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "a").write_bytes(content)
    with Reading(tmp_path / "a") as reading, reading.stream() as stream:
        for start, length in ((1000, 5000), (500, 10_000), (2_000_000, 10), (9, 9), (1 << 30, 5)):
            stream.seek(start)
            assert stream.read(length) == content[start : start + length]
        assert reading.digest() == hashlib.sha256(content).hexdigest()
