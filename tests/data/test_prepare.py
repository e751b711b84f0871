"""Preparation counts right, can be typed again, and refuses to mix."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from looped_jax.data import shards
from looped_jax.data.prepare import PartDone, Workers, prepare
from looped_jax.data.preparing import progress, units
from looped_jax.data.shards import TokenData
from looped_jax.data.sources import pieces
from looped_jax.errors import UserError

ROOT = Path(__file__).parents[2]


def prepare_books(books, out, **options):
    said = []
    asked = {"validation": str(books / "c.txt"), "vocab_size": 300, "say": said.append}
    return prepare(str(options.pop("source", books)), out, **asked | options), said


def test_counts_and_content(data, books):
    splits, tokenizer = data.manifest["splits"], data.tokenizer()
    for split, stream, names in (
        ("train", data.train, "ab"),
        ("validation", data.validation, "c"),
    ):
        texts = [(books / f"{name}.txt").read_text("utf-8") for name in names]
        tokens = stream.read(0, len(stream))
        assert tokenizer.decode(tokens) == "".join(text + "<|endoftext|>" for text in texts)
        assert splits[split] == {
            "tokens": len(tokens),
            "bytes": sum(len(text.encode()) for text in texts),
            "documents": len(texts),
        }
    assert data.vocab_size == 300
    assert data.train.read(0, 10**6).max() < 300


def test_bytes_of_validation_tokens(data):
    tokens = data.validation.read(0, len(data.validation))
    covered = data.validation_bytes.read(0, len(data.validation))
    assert covered.sum() == data.manifest["splits"]["validation"]["bytes"]
    assert (covered[tokens == data.end_of_text_id] == 0).all()
    uniform = np.log(data.vocab_size)  # nats per token of a model that knows nothing
    bits = uniform * (len(tokens) - 1) / np.log(2)
    assert uniform * data.bits_per_byte_factor == pytest.approx(bits / covered[1:].sum())
    assert data.bytes_per_token == pytest.approx(covered[1:].mean())


def test_the_tokenizer_never_sees_validation_text(tmp_path):
    (tmp_path / "a.txt").write_text("plain words " * 100)
    (tmp_path / "b.txt").write_text("zyzzyva zyzzyva " * 100)
    data, said = prepare_books(
        tmp_path, tmp_path / "out", source=tmp_path / "a.txt", validation=str(tmp_path / "b.txt")
    )
    assert len(data.tokenizer().encode("zyzzyva")) > 5
    assert data.vocab_size < 300
    assert any("tokens only, not for --vocab_size=300" in line for line in said)


def test_typed_again_it_finds_its_work(data, books, monkeypatch):
    before = {path.name: path.stat().st_mtime_ns for path in data.folder.iterdir()}
    again, said = prepare_books(books, data.folder)
    assert again.digest == data.digest
    assert len(said) == 1
    assert f"{data.folder} is already prepared: " in said[0]
    assert {path.name: path.stat().st_mtime_ns for path in data.folder.iterdir()} == before


def test_the_same_text_elsewhere_is_the_same_source(data, books, tmp_path):
    shutil.copytree(books, tmp_path / "moved")
    again, said = prepare_books(tmp_path / "moved", data.folder)
    assert again.digest == data.digest
    assert "already prepared" in said[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 301}, r"vocab_size=300, not vocab_size=301: choose another --out"),
        ({"source": "bundled", "validation": None}, r"source=.*books\d*, not source=bundled"),
        ({"validation": "0.5"}, r"validation=.*c\.txt, not validation=0\.5"),
        ({"text_field": "body"}, r"text_field=text, not text_field=body"),
        ({"rows": "packed"}, r"rows=windows, not rows=packed"),
    ],
)
def test_another_request_is_refused(data, books, options, message):
    with pytest.raises(UserError, match=f"holds data prepared with {message}"):
        prepare_books(books, data.folder, **options)
    data.verify()


def test_changed_text_is_refused(data, books, tmp_path):
    shutil.copytree(books, tmp_path / "books")
    data, _ = prepare_books(tmp_path / "books", tmp_path / "out")
    (tmp_path / "books" / "b.txt").write_text("new")
    with pytest.raises(UserError, match=r"prepared with another content of b\.txt"):
        prepare_books(tmp_path / "books", tmp_path / "out")
    data.verify()


def test_killed_at_any_line_it_starts_again(data, books, tmp_path):
    """kill -9 at each line the program prints; the result is always that of one clean run."""
    program = (
        "import itertools, os, sys\n"
        "from looped_jax.data.prepare import prepare\n"
        "lines = itertools.count(1)\n"
        "def say(line):\n"
        "    if next(lines) == int(sys.argv[4]): os.kill(os.getpid(), 9)\n"
        "prepare(sys.argv[1], sys.argv[2], validation=sys.argv[3], vocab_size=300, say=say)\n"
    )
    out = tmp_path / "out"
    for line in ("2", "2", "3"):  # after the tokenizer, after the tokens, when all is done
        arguments = [str(books), str(out), str(books / "c.txt"), line]
        done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, check=False)
        assert done.returncode == -9
        assert not (out / "manifest.json").exists()
    (out / "train-00007.npy").touch()
    (out / "train-00000.npy.unfinished-1").touch()
    again, _ = prepare_books(books, out)
    assert again.digest == data.digest
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in data.folder.iterdir())


def test_only_one_process_prepares_a_folder(books, tmp_path):
    with open(tmp_path / ".lock", "w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"process 4711 is preparing .* right now"):
            prepare_books(books, tmp_path)


def test_a_fraction_of_documents(tmp_path):
    lines = "".join(f'{{"text": "document number {i}"}}\n' for i in range(200))
    (tmp_path / "a.jsonl").write_text(lines)
    data, _ = prepare_books(
        tmp_path / "a.jsonl", tmp_path / "out", source=tmp_path / "a.jsonl", validation="0.2"
    )
    counts = {split: data.manifest["splits"][split]["documents"] for split in units.SPLITS}
    assert sum(counts.values()) == 200
    assert 15 <= counts["validation"] <= 65
    assert (data.train.read(0, 10**6) == data.end_of_text_id).sum() == counts["train"]


def test_shards_make_no_difference(data, books, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 1000)
    split, _ = prepare_books(books, tmp_path / "out")
    assert len(split.manifest["streams"]["train"]["shards"]) > 10
    for name in ("train", "validation", "validation_bytes"):
        one, many = getattr(data, name), getattr(split, name)
        np.testing.assert_array_equal(one.read(0, len(one)), many.read(0, len(many)))


def test_batches_make_no_difference(data, books, tmp_path, monkeypatch):
    monkeypatch.setattr(units, "BATCH_CHARACTERS", 1)
    again, _ = prepare_books(books, tmp_path / "out")
    assert again.digest == data.digest


def test_pieces_make_no_difference(data, books, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 500)
    again, _ = prepare_books(books, tmp_path / "out")
    assert again.digest == data.digest


def test_a_given_tokenizer_is_used(data, books, tmp_path):
    file = data.folder / "tokenizer.json"
    options = {"tokenizer_file": file, "vocab_size": None, "validation": str(books / "a.txt")}
    again, _ = prepare_books(books, tmp_path / "out", **options)
    assert (again.folder / "tokenizer.json").read_bytes() == file.read_bytes()
    assert again.manifest["tokenizer"] == data.manifest["tokenizer"]
    with pytest.raises(UserError, match=r"prepared with vocab_size=None, not vocab_size=300"):
        prepare_books(books, tmp_path / "out", validation=str(books / "a.txt"))
    with pytest.raises(UserError, match=r"--vocab_size=300 and --tokenizer=.*give one of the two"):
        prepare_books(books, tmp_path / "out", tokenizer_file=file)


def test_a_split_without_documents_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("The only document.")
    for fraction, split in (("0.000001", "validation"), ("0.999999", "train")):
        with pytest.raises(UserError, match=f"no document of --source is left for the {split}"):
            prepare_books(tmp_path, tmp_path / split, validation=fraction)
        with pytest.raises(UserError, match="holds no prepared data"):
            TokenData.open(tmp_path / split)


def test_progress_tells_part_rate_and_time_left(books, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", 0.0)
    _, said = prepare_books(books, tmp_path / "out")
    assert any(
        line.startswith("tokens: 67% of the input, 0.1M characters, ") and line.endswith(" s left")
        for line in said
    )


def run(*arguments, folder):
    done = subprocess.run(
        [sys.executable, "-m", "looped_jax.data.prepare", *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_command_line(books, data, tmp_path):
    arguments = ["--source=.", "--validation=c.txt", f"--out={tmp_path}", "--vocab_size=300"]
    status, output, error = run(*arguments, folder=books)
    assert (status, error) == (0, "")
    assert f"{tmp_path} is prepared: " in output
    assert TokenData.open(tmp_path).digest == data.digest


def test_command_line_errors(books):
    status, output, error = run("--source=bundled", "--out=a.txt/x", folder=books)
    assert (status, output) == (2, "")
    assert error == "error: cannot write into folder a.txt/x: Not a directory\n"
    status, _, error = run("--out=x", folder=books)
    assert status == 2
    assert error.startswith("error: flag --source=None: ")
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """200 documents of plain words as jsonl."""
    path = tmp_path_factory.mktemp("records") / "a.jsonl"
    lines = [json.dumps({"text": f"plain words of document {i}"}) for i in range(200)]
    path.write_text("\n".join(lines))
    return path


def changed_tokenizer(data, path, change):
    """The tokenizer of the books with its description changed in place."""
    described = json.loads((data.folder / "tokenizer.json").read_text("utf-8"))
    change(described)
    path.write_text(json.dumps(described), "utf-8")
    return path


def prepare_with(tokenizer, source, out, say=str):
    return prepare(str(source), out, validation="0.1", tokenizer_file=tokenizer, say=say)


def test_a_folder_that_is_not_ours_is_left_alone(records, tmp_path):
    strangers = {"tokenizer.json": "{}", "train-00007.npy": "mine", "notes.txt": "n"}
    for name, content in strangers.items():
        (tmp_path / name).write_text(content)
    message = r"holds 3 files that were not prepared here \(notes\.txt, tokenizer\.json, train-0000"
    with pytest.raises(UserError, match=message):
        prepare(str(records), tmp_path, validation="0.1", vocab_size=260, say=str)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == strangers


def written(path, texts):
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
    return path


def word_level(described):
    """Two words and a token for what is unknown."""
    vocab = {"<|endoftext|>": 0, "[UNK]": 1, "plain": 2, "words": 3}
    described["model"] = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    described |= {"pre_tokenizer": {"type": "Whitespace"}, "decoder": None}


def letters(described):
    """The letters of two words; what has no token is dropped."""
    vocab = {letter: 1 + i for i, letter in enumerate("plainwords")}
    described["model"] = {"type": "BPE", "vocab": {"<|endoftext|>": 0} | vocab, "merges": []}
    described |= {"pre_tokenizer": {"type": "Whitespace"}, "decoder": None}


@pytest.mark.parametrize("change", [word_level, letters])
def test_a_tokenizer_that_cannot_spell_the_text(data, tmp_path, change):
    """Dropped characters and the token for the unknown count alike, and the manifest has both."""
    tokenizer = changed_tokenizer(data, tmp_path / "t.json", change)
    source, said = tmp_path / "a.jsonl", []
    written(source, ["plain words " * 50 + str(i) for i in range(40)])
    few = prepare_with(tokenizer, source, tmp_path / "few", said.append)
    assert 0.001 < few.manifest["unspelled"]["train"] < 0.01
    assert any(
        re.search(r"tokens of train: \d+ of .* \(0\.\d+%, such as '\d", line) for line in said
    )

    written(source, [f"日本語 {i}" for i in range(40)])
    message = r"t\.json cannot spell the train split: 1.. of .* \(100\.00%, such as '日本語"
    with pytest.raises(UserError, match=message):
        prepare_with(tokenizer, source, tmp_path / "all")
    written(source, [f"{'plain words ' * 9}{i}" for i in range(1000, 1040)])
    message = r"\(4\.\d+%, such as '1\d+'\) .*; allowed: up to 1%"
    with pytest.raises(UserError, match=message):
        prepare_with(tokenizer, source, tmp_path / "some")


def test_a_text_that_spells_the_end_of_a_document(data, tmp_path):
    def ordinary(described):
        described["added_tokens"][0]["special"] = False

    texts = [f"plain words {i}" for i in range(60)] + ["on <|endoftext|> one"]
    source = written(tmp_path / "a.jsonl", texts)
    tokenizer = changed_tokenizer(data, tmp_path / "t.json", ordinary)
    message = r"document \d+ of the (train|validation) split spells the token .*t\.json has as an o"
    with pytest.raises(UserError, match=message):
        prepare_with(tokenizer, source, tmp_path / "out")
    as_text = prepare_with(data.folder / "tokenizer.json", source, tmp_path / "special")
    ends = (as_text.train.read(0, 10**6) == as_text.end_of_text_id).sum()
    assert ends == as_text.manifest["splits"]["train"]["documents"]


def test_a_tokenizer_that_draws_at_random(data, records, tmp_path):
    tokenizer = changed_tokenizer(
        data, tmp_path / "t.json", lambda described: described["model"].update(dropout=0.1)
    )
    with pytest.raises(UserError, match=r"t\.json draws tokens at random: .*dropout = 0\.1; allow"):
        prepare_with(tokenizer, records, tmp_path / "out")


@pytest.fixture(scope="module")
def divided(books, tmp_path_factory):
    """The books in three units, one for each of two files of training and one for validation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "UNIT_BYTES", 1)
        yield prepare_books(books, tmp_path_factory.mktemp("data") / "divided")[0]


def test_units_make_no_difference_to_the_stream(data, divided):
    shards_of = divided.manifest["streams"]["train"]["shards"]
    assert [s["file"] for s in shards_of] == ["train-00000.npy", "train-00001.npy"]
    for name in ("train", "validation", "validation_bytes"):
        one, many = getattr(data, name), getattr(divided, name)
        np.testing.assert_array_equal(one.read(0, len(one)), many.read(0, len(many)))
    assert divided.manifest["splits"] == data.manifest["splits"]


def test_processes_make_no_difference(divided, books, tmp_path, monkeypatch):
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    again, _ = prepare_books(books, tmp_path / "out", workers=Workers(processes=2))
    assert again.digest == divided.digest


def test_units_that_are_done_are_not_done_again(divided, books, tmp_path, monkeypatch):
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", 0.0)

    class Killed(BaseException):
        pass

    def kill_in_the_second_unit(line):
        if line.startswith("tokens: 67%"):
            raise Killed

    with pytest.raises(Killed):
        prepare_books(books, tmp_path / "out", say=kill_in_the_second_unit)
    first = tmp_path / "out" / "train-00000.npy"
    before = first.stat().st_mtime_ns
    again, said = prepare_books(books, tmp_path / "out")
    assert any(line.endswith("of 3 units are done") for line in said)
    assert again.digest == divided.digest
    assert first.stat().st_mtime_ns == before
    assert not (tmp_path / "out" / units.FOLDER).exists()


def test_parts_together_complete_the_folder(divided, books, tmp_path, monkeypatch):
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    out, tokenizer = tmp_path / "out", divided.folder / "tokenizer.json"
    options = {"tokenizer_file": tokenizer, "vocab_size": None}
    with pytest.raises(PartDone, match="this part is done; others have 1 of 3 units left"):
        prepare_books(books, out, workers=Workers(part=0, parts=2), **options)
    again, _ = prepare_books(books, out, workers=Workers(part=1, parts=2), **options)
    assert again.digest == divided.digest


def test_parts_share_the_tokenizer_that_the_first_trains(divided, books, tmp_path, monkeypatch):
    """The second part waits for it; where its trainer was killed, it trains the same one."""
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    out, said = tmp_path / "out", []

    def release_when_told(line):
        said.append(line)
        if line.startswith("waiting"):
            os.close(held)

    out.mkdir()
    held = os.open(out / ".lock-tokenizer", os.O_RDWR | os.O_CREAT)
    os.write(held, b"process 7 on node1\n")
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(PartDone, match="others have 2 of 3 units left"):
        prepare_books(books, out, workers=Workers(part=1, parts=2), say=release_when_told)
    assert "waiting for the tokenizer, which process 7 on node1 trains" in said
    assert any(line.startswith("tokenizer: ") for line in said)
    again, later = prepare_books(books, out, workers=Workers(part=0, parts=2))
    assert not any(line.startswith("tokenizer: ") for line in later)
    assert again.digest == divided.digest


def test_a_tokenizer_from_a_sample(books, tmp_path):
    few, said = prepare_books(books, tmp_path / "few", tokenizer_sample=200, vocab_size=400)
    assert any("trained on the first 100 characters of each input" in line for line in said)
    assert few.vocab_size < 400
    assert few.manifest["request"]["tokenizer_sample"] == 200


def test_inputs_that_did_not_change_are_not_read_to_be_compared(data, books, monkeypatch):
    monkeypatch.setattr("looped_jax.data.sources.files.sha256_of_file", pytest.fail)
    assert prepare_books(books, data.folder)[0].digest == data.digest


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--part=2/2", "--part=2/2; allowed: I/N with I from 0 to N - 1"),
        ("--processes=0", "--processes=0; allowed: 1 or more"),
    ],
)
def test_wrong_workers(books, tmp_path, flag, message):
    status, _, error = run(f"--source={books}", f"--out={tmp_path}", flag, folder=books)
    assert (status, error) == (2, f"error: {message}\n")
