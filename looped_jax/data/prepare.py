"""Text to token shards, once.

    python -m looped_jax.data.prepare --source=bundled --out=data/novels --vocab_size=2048
    python -m looped_jax.data.prepare --source='books/*.jsonl' --validation=0.01 --out=data/books
    python -m looped_jax.data.prepare --source=tfds:lm1b --validation=tfds:lm1b:test --out=data/lm1b
    python -m looped_jax.data.prepare --source=hops --out=data/hops

Typed again, it finds its finished work; interrupted, it starts again. What `--out` then holds is
described in `looped_jax.data.shards`; `TokenData.open` reads it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from looped_jax import cli
from looped_jax.data import hops, shards, tokenizer
from looped_jax.data.shards import ShardWriter, TokenData
from looped_jax.data.sources import (
    BUNDLED_VALIDATION,
    END_OF_TEXT,
    OF_PREPARED_DATA,
    Piece,
    Source,
    Split,
    open_source,
)
from looped_jax.data.spelling import Spelling, refuse_end_of_text
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.described import Description
from looped_jax.errors import UserError
from looped_jax.files import (
    sha256_of_file,
    sweep,
    writable_folder,
    write_bytes,
    write_json,
)
from looped_jax.lock import Held, locked

VOCAB_SIZE = 4096
# Tasks by name: they make their own text, hold out part of it and bring their vocabulary.
TASKS: dict[str, Callable[[], Source]] = {"hops": hops.source}
# In a folder whose preparation began and is not finished: what was asked for.
BEGUN = OF_PREPARED_DATA[1]
SPLITS: tuple[Split, ...] = ("train", "validation")
# Pieces encoded together: enough to occupy all cores, little enough to hold.
BATCH_CHARACTERS = 1 << 22
PROGRESS_SECONDS = 5.0


def prepare(
    source: str,
    out: str | os.PathLike[str],
    *,
    validation: str | None = None,
    tokenizer_file: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    text_field: str = "text",
    end_of_text: str = END_OF_TEXT,
    say: Callable[[str], None] = print,
) -> TokenData:
    """Makes `out` hold the tokens of a source, unless it does already.

    Args:
      source: `bundled`, a name in TASKS, `tfds:NAME[:SPLIT]`, or a file, folder or glob of text,
        JSON or parquet.
      out: the folder to make.
      validation: what is held out: like `source`, or a fraction of documents, such as "0.01".
        None for `bundled`, which holds out one novel, and for tasks.
      tokenizer_file: a tokenizer.json to use; None trains a byte-level BPE on the train split.
      vocab_size: size of the BPE to train; None for VOCAB_SIZE.
      text_field: the field of JSON, parquet and TFDS records that holds the text.
      end_of_text: the token of `tokenizer_file` that ends a document.
      say: takes the lines that tell how far the work is.

    Returns:
      The prepared data.

    Raises UserError for unusable input, and if `out` holds data prepared in another way.
    """
    if tokenizer_file is not None and vocab_size is not None:
        raise UserError(
            f"--vocab_size={vocab_size} and --tokenizer={tokenizer_file}: "
            "a tokenizer file has its vocabulary, give one of the two"
        )
    opened = _open_task(source, validation, tokenizer_file, vocab_size) or open_source(
        source, validation, text_field
    )
    loaded = None if tokenizer_file is None else tokenizer.load(tokenizer_file, end_of_text)
    folder = Path(out)
    request: dict[str, Any] = {
        "source": source,
        "validation": BUNDLED_VALIDATION if source == "bundled" else validation,
        "held_out_fraction": opened.held_out_fraction,
        "text_field": text_field,
        "vocab_size": None if tokenizer_file or opened.vocabulary else vocab_size or VOCAB_SIZE,
        "tokenizer_sha256": sha256_of_file(tokenizer_file) if tokenizer_file else None,
        "end_of_text": end_of_text,
        "inputs": _describe_inputs(opened),
    }
    state = "is already prepared"
    if not _is_prepared(folder, request):
        with _only_one_in(writable_folder(folder)):
            if not _is_prepared(folder, request):
                for note in opened.notes:
                    say(note)
                _write(opened, loaded, request, folder, say)
                state = "is prepared"
    data = TokenData.open(folder)
    say(f"{folder} {state}: {_summary(data)}")
    return data


def _open_task(source: str, validation: Any, tokenizer_file: Any, vocab_size: Any) -> Source | None:
    """The task of this name, if it is one."""
    if source not in TASKS:
        return None
    for flag, value in (
        ("validation", validation), ("tokenizer", tokenizer_file), ("vocab_size", vocab_size),
    ):  # fmt: skip
        if value is not None:
            raise UserError(
                f"--{flag}={value} with --source={source}: its text and vocabulary are fixed"
            )
    return TASKS[source]()


def _write(
    source: Source,
    loaded: Tokenizer | None,
    request: dict[str, Any],
    folder: Path,
    say: Callable[[str], None],
) -> None:
    # From here on the files in the folder are ours to write and, after a kill, to replace.
    write_json(folder / BEGUN, request)
    for leftover in shards.shard_files(folder):
        leftover.unlink()
    sweep(folder)
    if source.vocabulary is not None:
        encoder = tokenizer.of_words(source.vocabulary)
    else:
        encoder = loaded or _train_tokenizer(source, request["vocab_size"], say)
    write_bytes(folder / shards.TOKENIZER, encoder.to_json().encode())
    dtype = "uint16" if encoder.vocab_size <= 1 << 16 else "uint32"
    splits: dict[str, Any] = {}
    streams: dict[str, Any] = {}
    unspelled: dict[str, float] = {}
    for split in SPLITS:
        splits[split], written, unspelled[split] = _encode_split(
            source, split, encoder, folder, dtype, say
        )
        streams |= written
    shards.write_manifest(
        folder,
        {
            "request": request,
            "tokenizer": {
                "file": shards.TOKENIZER,
                "sha256": sha256_of_file(folder / shards.TOKENIZER),
                "vocab_size": encoder.vocab_size,
                "end_of_text": request["end_of_text"],
                "end_of_text_id": encoder.end_of_text_id,
            },
            "splits": splits,
            "streams": streams,
            "loop_targets": source.loop_targets.loops if source.loop_targets else 0,
            "unspelled": unspelled,
            "versions": {p: metadata.version(p) for p in ("numpy", "tokenizers")},
        },
    )
    (folder / BEGUN).unlink()


def _train_tokenizer(source: Source, vocab_size: int, say: Callable[[str], None]) -> Tokenizer:
    progress = Progress("tokenizer", source, "train", say)
    texts = (piece.text for piece in progress.follow(source.pieces("train")))
    trained = tokenizer.train(texts, vocab_size)
    progress.finish()
    if trained.vocab_size < vocab_size:
        say(
            f"tokenizer: the text has merges for {trained.vocab_size:,} tokens only, "
            f"not for --vocab_size={vocab_size}"
        )
    return trained


def _encode_split(
    source: Source,
    split: Split,
    encoder: Tokenizer,
    folder: Path,
    dtype: str,
    say: Callable[[str], None],
) -> tuple[dict[str, int], dict[str, Any], float]:
    """Writes the shards of a split.

    Returns:
      Its counts and its streams for the manifest, and the share of its text without tokens.
    """
    tokens = ShardWriter(folder, split, dtype)
    covered = ShardWriter(folder, "validation-bytes", "uint32") if split == "validation" else None
    asked = source.loop_targets
    targets = ShardWriter(folder, f"{split}-targets", dtype) if asked else None
    end_of_text, no_bytes = np.array([encoder.end_of_text_id]), np.array([0])
    n_bytes = n_documents = 0
    spelling = Spelling(encoder, split)
    progress = Progress(f"tokens of {split}", source, split, say)
    for batch in _batches(progress.follow(source.pieces(split))):
        texts = [piece.text for piece in batch]
        if covered is None and encoder.spells_everything:
            ids_of_pieces = encoder.encode_batch(texts)
        else:
            measured = encoder.encode_and_measure(texts)
            spelling.add(measured)
            ids_of_pieces = [each.ids for each in measured]
        for piece, ids in zip(batch, ids_of_pieces, strict=True):
            refuse_end_of_text(ids, encoder, n_documents, split)
            tokens.add(ids)
            if asked and targets:
                targets.add(asked.of_ids(ids).ravel())
            n_bytes += len(piece.text.encode())
            if piece.ends_document:
                tokens.add(end_of_text)
                if asked and targets:
                    targets.add(np.repeat(end_of_text, asked.loops))
                n_documents += 1
        if covered is not None:
            for piece, each in zip(batch, measured, strict=True):
                covered.add(each.covered)
                if piece.ends_document:
                    covered.add(no_bytes)
    progress.finish()
    if n_documents == 0:
        raise UserError(
            f"no document of --source is left for the {split} split "
            "(is its text blank, or the fraction in --validation too small or too large?)"
        )
    counts = {"tokens": tokens.length, "bytes": n_bytes, "documents": n_documents}
    streams: dict[str, Any] = {split: tokens.finish()}
    if targets is not None:
        streams[f"{split}-targets"] = targets.finish()
    if covered is not None:
        streams["validation-bytes"] = covered.finish()
    return counts, streams, spelling.finish(say)


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch, characters = [], 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _describe_inputs(source: Source) -> list[dict[str, str]]:
    held_out = "train and validation" if source.held_out_fraction is not None else "train"
    return [
        {"name": each.name, "split": split, "sha256": each.sha256()}
        for split, inputs in ((held_out, source.train), ("validation", source.validation))
        for each in inputs
    ]


def _is_prepared(folder: Path, request: dict[str, Any]) -> bool:
    """Whether finished work of this very request is there.

    Raises:
      UserError: it is of another request, or the folder holds what was not prepared here.
    """
    if not (folder / shards.MANIFEST).exists():
        _refuse_foreign(folder)
        return False
    found = Description(shards.read_manifest(folder), str(folder / shards.MANIFEST))
    asked_before = found.section("request")
    before, now = (
        {(Path(name).name, split, sha256) for name, split, sha256 in map(_input_key, inputs)}
        for inputs in (asked_before.get("inputs", list), request["inputs"])
    )
    for key, asked in request.items():
        # The same text is the same source, whatever path leads to it.
        of_text = key in ("source", "validation", "inputs")
        if asked_before.table.get(key) == asked or (of_text and before == now):
            continue
        if key == "inputs":
            difference = f"another content of {min(name for name, *_ in before ^ now)}"
        else:
            difference = f"{key}={asked_before.table.get(key)}, not {key}={asked}"
        raise UserError(f"{folder} holds data prepared with {difference}: choose another --out")
    return True


def _input_key(described: Any) -> tuple[str, str, str]:
    each = Description(described, "an input of the manifest")
    return each.get("name", str), each.get("split", str), each.get("sha256", str)


def _refuse_foreign(folder: Path) -> None:
    """Raises UserError for a folder with files, if no preparation began them."""
    if not folder.is_dir() or (folder / BEGUN).exists():
        return
    strangers = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if strangers:
        named = ", ".join(strangers[:5]) + (", …" if len(strangers) > 5 else "")
        raise UserError(
            f"{folder} holds {len(strangers)} files that were not prepared here ({named}): choose "
            "another --out"
        )


@contextlib.contextmanager
def _only_one_in(folder: Path) -> Iterator[None]:
    """Refuses a second process that prepares into the same folder; a killed one holds nothing."""
    try:
        with locked(folder / ".lock", str(os.getpid())):
            yield
    except Held as held:
        raise UserError(f"process {held} is preparing {folder} right now") from None


class Progress:
    """Says every few seconds how much of a split's input is read, how fast, and the time left."""

    def __init__(self, name: str, source: Source, split: Split, say: Callable[[str], None]):
        self._name, self._say = name, say
        self._inputs = source.inputs(split)
        self._total = sum(each.size for each in self._inputs)
        self._start = self._spoke = time.monotonic()
        self._characters = 0
        for each in self._inputs:
            each.consumed = 0

    def follow(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Passes pieces through and counts them."""
        for piece in pieces:
            yield piece
            self._characters += len(piece.text)
            if time.monotonic() - self._spoke >= PROGRESS_SECONDS:
                self._speak()

    def finish(self) -> None:
        """Says what the whole took."""
        seconds = time.monotonic() - self._start
        self._say(f"{self._name}: {self._characters / 1e6:.1f}M characters in {seconds:.1f} s")

    def _speak(self) -> None:
        self._spoke = time.monotonic()
        seconds = self._spoke - self._start
        part = sum(each.consumed for each in self._inputs) / self._total
        left = f"{seconds * (1 - part) / part:.0f} s left" if part > 0 else "time left unknown"
        self._say(
            f"{self._name}: {part:.0%} of the input, {self._characters / 1e6:.1f}M characters, "
            f"{self._characters / 1e6 / seconds:.1f}M a second, {left}"
        )


def _summary(data: TokenData) -> str:
    parts = [
        f"{counts['tokens']:,} {split} tokens"
        for split, counts in ((split, data.manifest["splits"][split]) for split in SPLITS)
    ]
    return (
        f"{', '.join(parts)}, vocabulary {data.vocab_size:,}, "
        f"{data.bytes_per_token:.2f} bytes a token"
    )


def define_flags() -> None:
    """Flags of the command line; defined only when this file is the program."""
    flags.DEFINE_string(
        "source",
        None,
        f"bundled, {', '.join(TASKS)}, tfds:NAME[:SPLIT], or a file, folder or glob of text, JSON "
        "or parquet.",
        required=True,
    )
    flags.DEFINE_string("out", None, "Folder to make.", required=True)
    flags.DEFINE_string(
        "validation", None, "Held out: like --source, or a fraction of documents such as 0.01."
    )
    flags.DEFINE_string("tokenizer", None, "A tokenizer.json to use instead of training one.")
    flags.DEFINE_integer(
        "vocab_size", None, f"Size of the byte-level BPE to train (default {VOCAB_SIZE})."
    )
    flags.DEFINE_string("text_field", "text", "Field of JSON, parquet and TFDS records to read.")
    flags.DEFINE_string("end_of_text", END_OF_TEXT, "Token of --tokenizer that ends a document.")


def main(_: list[str]) -> None:
    given = flags.FLAGS
    prepare(
        given.source,
        given.out,
        validation=given.validation,
        tokenizer_file=given.tokenizer,
        vocab_size=given.vocab_size,
        text_field=given.text_field,
        end_of_text=given.end_of_text,
        say=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
