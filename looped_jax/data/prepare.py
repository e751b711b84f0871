"""Text to token shards, once.

    python -m looped_jax.data.prepare --source=bundled --out=data/novels --vocab_size=2048
    python -m looped_jax.data.prepare --source='books/*.jsonl' --validation=0.01 --out=data/books
    python -m looped_jax.data.prepare --source=tfds:lm1b --validation=tfds:lm1b:test --out=data/lm1b
    python -m looped_jax.data.prepare --source=hops --out=data/hops

Typed again, it finds its finished work; interrupted, it goes on with the units of input files that
are not done. `--processes=N` encodes N at a time; with `--part=I/N` (I from 0) each of N nodes
takes every N-th unit: the first to come trains the tokenizer for all, and the last to end completes
the folder. What `--out` then holds is described in `looped_jax.data.shards`; `TokenData.open` reads
it.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from looped_jax import cli
from looped_jax.data import hops, shards, tokenizer
from looped_jax.data.preparing.encoder import encoder_of
from looped_jax.data.preparing.encoding import encode_units
from looped_jax.data.preparing.folder import LOCK, begin, is_prepared, one_after_another, tidy
from looped_jax.data.preparing.spelling import Spelling
from looped_jax.data.preparing.units import SPLITS, Unit, plan_units
from looped_jax.data.shards import ROWS, TokenData
from looped_jax.data.sources.pieces import END_OF_TEXT
from looped_jax.data.sources.source import BUNDLED_VALIDATION, Source, open_source
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError
from looped_jax.files import read_json, sha256_of_file, writable_folder
from looped_jax.lock import Held, locked

VOCAB_SIZE = 4096
TOKENIZER_SAMPLE = 500_000_000  # characters
# Tasks by name: they make their own text, hold out part of it and bring their vocabulary.
TASKS: dict[str, Callable[[], Source]] = {"hops": hops.source}


class PartDone(Exception):
    """All of this part of a preparation is done, and other parts are not."""


class Workers(NamedTuple):
    """Processes that encode in this call, and which of so many parts of the units it does."""

    processes: int = 1
    part: int = 0
    parts: int = 1


ALONE = Workers()


def prepare(
    source: str,
    out: str | os.PathLike[str],
    *,
    validation: str | None = None,
    tokenizer_file: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    text_field: str = "text",
    end_of_text: str = END_OF_TEXT,
    tokenizer_sample: int = TOKENIZER_SAMPLE,
    rows: str = ROWS[0],
    workers: Workers = ALONE,
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
      tokenizer_sample: characters that a tokenizer is trained on, the first of every input.
      rows: how training cuts the text into rows, one of `shards.ROWS`.
      workers: processes that encode, and which part of the units is theirs.
      say: takes the lines that tell how far the work is.

    Returns:
      The prepared data.

    Raises UserError for unusable input, and if `out` holds data prepared in another way; PartDone
    where this part is done and others are not.
    """
    if tokenizer_file is not None and vocab_size is not None:
        raise UserError(
            f"--vocab_size={vocab_size} and --tokenizer={tokenizer_file}: "
            "a tokenizer file has its vocabulary, give one of the two"
        )
    if tokenizer_sample < 1:
        raise UserError(f"--tokenizer_sample={tokenizer_sample}; allowed: 1 or more characters")
    if rows not in ROWS:
        raise UserError(f"--rows={rows}; allowed: {', '.join(ROWS)}")
    opened = _open_task(source, validation, tokenizer_file, vocab_size) or open_source(
        source, validation, text_field
    )
    loaded = None if tokenizer_file is None else tokenizer.load(tokenizer_file, end_of_text)
    trains = tokenizer_file is None and not opened.vocabulary
    folder = Path(out)
    request: dict[str, Any] = {
        "source": source,
        "validation": BUNDLED_VALIDATION if source == "bundled" else validation,
        "held_out_fraction": opened.held_out_fraction,
        "text_field": text_field,
        "vocab_size": vocab_size or VOCAB_SIZE if trains else None,
        "tokenizer_sample": tokenizer_sample if trains else None,
        "tokenizer_sha256": sha256_of_file(tokenizer_file) if tokenizer_file else None,
        "end_of_text": end_of_text,
        "rows": rows,
    }
    state = "is already prepared"
    if not is_prepared(folder, request, opened):
        with _only_one_in(writable_folder(folder), workers):
            if not is_prepared(folder, request, opened):
                for note in opened.notes:
                    say(note)
                _write(opened, loaded, request, folder, workers, say)
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
    workers: Workers,
    say: Callable[[str], None],
) -> None:
    """Does what is left, or this part of it. Raises PartDone where other parts are left."""
    with one_after_another(folder / LOCK):
        begin(folder, request, source, alone=workers.parts == 1)
    encoder = encoder_of(source, loaded, request, folder, say)
    units = plan_units(source)
    missing = [unit for unit in units if not unit.entry_path(folder).exists()]
    if len(missing) < len(units):
        say(f"{len(units) - len(missing)} of {len(units)} units are done")
    mine = [unit for i, unit in enumerate(units) if i % workers.parts == workers.part]
    left = [unit for unit in mine if unit in missing]
    encode_units(left, source, encoder, folder, workers.processes, say)
    waiting = [unit for unit in units if not unit.entry_path(folder).exists()]
    if waiting:
        raise PartDone(f"this part is done; others have {len(waiting)} of {len(units)} units left")
    with one_after_another(folder / LOCK):
        if not (folder / shards.MANIFEST).exists():
            _finish(units, source, encoder, request, folder, say)


def _finish(
    units: list[Unit],
    source: Source,
    encoder: Tokenizer,
    request: dict[str, Any],
    folder: Path,
    say: Callable[[str], None],
) -> None:
    """Puts the entries of all units together, as the manifest."""
    entries = [read_json(unit.entry_path(folder)) for unit in units]
    splits: dict[str, Any] = {}
    unspelled: dict[str, float] = {}
    for split in SPLITS:
        counts = [e["splits"][split] for e in entries if split in e["splits"]]
        splits[split] = {k: sum(c[k] for c in counts) for k in ("tokens", "bytes", "documents")}
        if splits[split]["documents"] == 0:
            raise UserError(
                f"no document of --source is left for the {split} split "
                "(is its text blank, or the fraction in --validation too small or too large?)"
            )
        spelling = Spelling(encoder, split)
        for entry in entries:
            if split in entry["spelling"]:
                spelling.join(entry["spelling"][split])
        unspelled[split] = spelling.finish(say)
    streams: dict[str, Any] = {}
    for entry in entries:
        for name, stream in entry["streams"].items():
            whole = streams.setdefault(name, {"dtype": stream["dtype"], "length": 0, "shards": []})
            whole["length"] += stream["length"]
            whole["shards"] += stream["shards"]
    shards.write_manifest(
        folder,
        {
            "request": request | {"inputs": [i for entry in entries for i in entry["inputs"]]},
            "rows": request["rows"],
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
    tidy(folder)


@contextlib.contextmanager
def _only_one_in(folder: Path, workers: Workers) -> Iterator[None]:
    """Refuses a second process that prepares the same part; a killed one holds nothing."""
    name = ".lock" if workers.parts == 1 else f".lock-{workers.part}"
    try:
        with locked(folder / name, str(os.getpid())):
            yield
    except Held as held:
        raise UserError(f"process {held} is preparing {folder} right now") from None


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
        f"bundled, {', '.join(TASKS)}, tfds:NAME[:SPLIT], hf:REPO[:CONFIG[:SPLIT]], or a file, "
        "folder or glob of text, JSON or parquet.",
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
    flags.DEFINE_integer(
        "tokenizer_sample", TOKENIZER_SAMPLE,
        "Characters to train a tokenizer on: the first of every input, as many of each.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "processes", 1, "Input files (or groups of small ones) encoded at a time, a core for each."
    )
    flags.DEFINE_string("part", "0/1", "I/N on node I of N: encode each N-th unit.")
    flags.DEFINE_enum(
        "rows", ROWS[0], ROWS,
        "How training cuts the text into rows of T + 1 tokens: windows that overlap by one token, "
        "so that each is a target, or packed one behind the other, each token in one row.",
    )  # fmt: skip


def _workers(processes: int, part: str) -> Workers:
    found = re.fullmatch(r"(\d+)/(\d+)", part)
    if processes < 1:
        raise UserError(f"--processes={processes}; allowed: 1 or more")
    if found is None or not int(found[1]) < int(found[2]):
        raise UserError(f"--part={part}; allowed: I/N with I from 0 to N - 1")
    return Workers(processes, int(found[1]), int(found[2]))


def main(_: list[str]) -> None:
    say = lambda line: print(line, flush=True)
    try:
        _prepare(say)
    except PartDone as done:
        say(str(done))


def _prepare(say: Callable[[str], None]) -> None:
    given = flags.FLAGS
    prepare(
        given.source,
        given.out,
        validation=given.validation,
        tokenizer_file=given.tokenizer,
        vocab_size=given.vocab_size,
        text_field=given.text_field,
        end_of_text=given.end_of_text,
        tokenizer_sample=given.tokenizer_sample,
        rows=given.rows,
        workers=_workers(given.processes, given.part),
        say=say,
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
