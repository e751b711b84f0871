"""Where text comes from: the bundled novels, files, or a TFDS data set.

A source is read as a stream of pieces, so that neither a corpus nor one long document has to fit
into memory. The same source gives the same pieces in the same order each time.
"""

import glob
import gzip
import hashlib
import io
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np

from looped_jax.errors import UserError
from looped_jax.files import sha256_of_file, sha256_of_json

Split = Literal["train", "validation"]

CORPUS = Path(__file__).parent / "corpus"
BUNDLED_VALIDATION = "austen_persuasion.txt.xz"
# In a text file this separates documents, as in corpora that come as one large file.
END_OF_TEXT = "<|endoftext|>"
# Long documents are read in pieces of this many characters.
PIECE_CHARACTERS = 1 << 16

KINDS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
COMPRESSIONS = (".xz", ".gz", ".zst")
# In a folder that `prepare` made or is about to.
OF_PREPARED_DATA = ("train-00000.npy", "preparing.json")
MOST_NAMED = 5


@dataclass(frozen=True)
class Piece:
    """Consecutive text of one document; `ends_document` marks its last piece."""

    text: str
    ends_document: bool


class Input(Protocol):
    """One thing that is read from start to end: a file, or a split of a TFDS data set."""

    name: str
    size: int
    """In the unit of `consumed`."""
    consumed: int
    """How much of `size` the newest reading has taken in."""

    def sha256(self) -> str: ...

    def pieces(self) -> Iterator[Piece]: ...


class LoopTargets(NamedTuple):
    """What each loop of a model is to predict, where that is not the token that follows.

    Attributes:
      loops: K, loops that have a target.
      of_ids: ids (N,) of a piece -> targets (N, K): what loop 1 … K is to say in place of each
        token. Tokens at which the last loop's target is the token itself are scored when the model
        is validated; the others are there to be learned only.
    """

    loops: int
    of_ids: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Source:
    """Inputs per split, or one set of inputs of which a fraction of documents is held out.

    A task with words of its own brings its `vocabulary`, the end-of-text token first, in place of
    a tokenizer that is trained or loaded; texts are its words with blanks between them.

    Attributes:
      notes: what was found in folders, read and passed over.
    """

    train: list[Input]
    validation: list[Input]
    held_out_fraction: float | None
    vocabulary: tuple[str, ...] | None = None
    loop_targets: LoopTargets | None = None
    notes: tuple[str, ...] = ()

    def inputs(self, split: Split) -> list[Input]:
        """The inputs that hold this split's text (and the other's, if a fraction is held out)."""
        shared = self.held_out_fraction is not None or split == "train"
        return self.train if shared else self.validation

    def pieces(self, split: Split) -> Iterator[Piece]:
        """Streams the text of a split."""
        for source in self.inputs(split):
            if self.held_out_fraction is None:
                yield from source.pieces()
            else:
                wanted = split == "validation"
                yield from _documents_of_split(source.pieces(), self.held_out_fraction, wanted)


def open_source(source: str, validation: str | None, text_field: str) -> Source:
    """Resolves what was asked for, without reading text.

    Args:
      source: `bundled`, `tfds:NAME[:SPLIT]`, or a file, folder or glob of text, JSON or parquet.
      validation: what is held out: a source, or a fraction of documents between 0 and 1. Files
        named here are never trained on, even if `source` matches them too. None for `bundled`.
      text_field: the field of JSON, parquet and TFDS records that holds the text.

    Raises UserError for anything missing, empty or of an unknown kind.
    """
    if source == "bundled":
        if validation is not None:
            raise UserError(
                f"--validation={validation} with --source=bundled: its validation text is fixed"
            )
        files: list[Input] = [FileInput(path, text_field) for path in sorted(CORPUS.glob("*.xz"))]
        held_out = [file for file in files if file.name.endswith(BUNDLED_VALIDATION)]
        return Source([file for file in files if file not in held_out], held_out, None)
    if validation is None:
        raise UserError(
            f"--source={source} needs --validation: a file, folder, glob or tfds:NAME:SPLIT, "
            "or the fraction of documents to hold out, such as 0.01"
        )
    notes: list[str] = []
    inputs = _resolve(source, text_field, "source", notes)
    fraction = _as_fraction(validation)
    if fraction is not None:
        return Source(inputs, [], fraction, notes=tuple(notes))
    held_out = _resolve(validation, text_field, "validation", notes)
    names = {each.name for each in held_out}
    train = [each for each in inputs if each.name not in names]
    if not train:
        raise UserError(f"--validation={validation} holds out all of --source={source}")
    return Source(train, held_out, None, notes=tuple(notes))


def _resolve(spec: str, text_field: str, flag: str, notes: list[str]) -> list[Input]:
    if spec.startswith("tfds:"):
        return [TfdsInput(spec, text_field)]
    path = Path(spec).expanduser()
    if path.is_dir():
        found = _within(path, f"--{flag}={spec}", notes)
    elif path.exists():
        found = [path]
    else:
        found = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        found = [file for file in found if not file.is_dir()]
        if not found:
            raise UserError(f"--{flag}={spec}: no such file or folder")
    _refuse_mixed(found, f"--{flag}={spec}")
    return [FileInput(file, text_field) for file in found]


def _within(folder: Path, given: str, notes: list[str]) -> list[Path]:
    """The files of known kinds in a folder and its folders; notes say which.

    Neither hidden ones, nor those of data prepared into a folder of it.
    """
    everything = sorted(file for file in folder.rglob("*") if file.is_file())
    prepared = {file.parent for file in everything if file.name in OF_PREPARED_DATA}
    hidden = lambda file: any(part.startswith(".") for part in file.relative_to(folder).parts)
    found = [
        file
        for file in everything
        if _kind(file) and not hidden(file) and file.parent not in prepared
    ]
    if not found:
        raise UserError(f"{given}: no file in this folder is {_allowed_kinds()}")
    skipped = [file for file in everything if file not in set(found)]
    for does, files in (("reads", found), ("skips", skipped)):
        if files:
            notes.append(f"{given} {does} {len(files)} files: {_named(files, folder)}")
    return found


def _refuse_mixed(files: list[Path], given: str) -> None:
    """Raises UserError for files of several kinds: a README beside records is no document."""
    kinds: dict[str, list[Path]] = {}
    for file in files:
        kinds.setdefault(_kind(file) or file.suffix, []).append(file)
    if len(kinds) > 1:
        told = "; ".join(f"{kind}: {_named(each)}" for kind, each in sorted(kinds.items()))
        raise UserError(
            f"{given} holds files of {len(kinds)} kinds ({told}); allowed: one kind, chosen with a "
            "pattern such as 'FOLDER/**/*.jsonl'"
        )


def _named(files: list[Path], folder: Path | None = None) -> str:
    names = [str(file.relative_to(folder)) if folder else file.name for file in files[:MOST_NAMED]]
    more = len(files) - MOST_NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _as_fraction(validation: str) -> float | None:
    try:
        fraction = float(validation)
    except ValueError:
        return None
    if not 0 < fraction < 1:
        raise UserError(f"--validation={validation}: a fraction of documents lies between 0 and 1")
    return fraction


def _documents_of_split(
    pieces: Iterable[Piece], fraction: float, validation: bool
) -> Iterator[Piece]:
    """Chooses documents by a hash of their first piece: equal documents never part."""
    at_start = True
    for piece in pieces:
        if at_start:
            digest = hashlib.sha256(piece.text.encode()).digest()
            held_out = int.from_bytes(digest[:8], "big") < fraction * 2**64
        if held_out == validation:
            yield piece
        at_start = piece.ends_document


class FileInput:
    """A text, JSON or parquet file; the former two also compressed with xz, gzip or zstd."""

    def __init__(self, path: Path, text_field: str):
        self.path = path
        self.name = str(path.resolve())
        self.text_field = text_field
        self.consumed = 0
        kind = _kind(path)
        if kind is None:
            raise UserError(f"{path} is not {_allowed_kinds()}")
        self.kind = kind
        self.size = path.stat().st_size
        if self.size == 0:
            raise UserError(f"{path} is empty")

    def sha256(self) -> str:
        try:
            return sha256_of_file(self.path)
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error

    def pieces(self) -> Iterator[Piece]:
        self.consumed = 0
        readers = {"text": self._text, "json": self._json, "parquet": self._parquet}
        try:
            yield from readers[self.kind]()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.path} is not UTF-8: {error.reason}") from error
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"cannot decompress {self.path}: {error}") from error
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error
        self.consumed = self.size

    def _text(self) -> Iterator[Piece]:
        with open(self.path, "rb") as raw:
            # newline="": the text keeps its line ends, so that bytes are counted as they are.
            stream = io.TextIOWrapper(self._decompressed(raw), encoding="utf-8", newline="")
            yield from split_documents(self._chunks(stream, raw))

    def _chunks(self, stream: io.TextIOWrapper, raw: BinaryIO) -> Iterator[str]:
        while chunk := stream.read(PIECE_CHARACTERS):
            self.consumed = raw.tell()
            yield chunk

    def _json(self) -> Iterator[Piece]:
        """A record on each line, or one value: a list of records, or a record.

        A file of lines is read line by line, whatever its name; one value is read whole.
        """
        with open(self.path, "rb") as raw:
            stream = io.TextIOWrapper(self._decompressed(raw), encoding="utf-8", newline="\n")
            lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
            first = next(lines, (1, "{}"))
            if self._is_value(first[1]):
                yield from self._records(first[1] + stream.read())
                return
            for number, line in itertools.chain([first], lines):
                self.consumed = raw.tell()
                where = f"{self.path} line {number}"
                yield from cut(_text_of(_parsed(line, where), self.text_field, where))

    def _is_value(self, first: str) -> bool:
        """Whether a .json file's first line is not a record but the start of one value."""
        if _suffix(self.path) != ".json":
            return False
        try:
            return not isinstance(json.loads(first), dict)
        except (ValueError, RecursionError):
            return True

    def _records(self, text: str) -> Iterator[Piece]:
        value = _parsed(text, str(self.path))
        for number, record in enumerate(value if isinstance(value, list) else [value], start=1):
            where = f"{self.path} record {number}"
            yield from cut(_text_of(record, self.text_field, where))

    def _parquet(self) -> Iterator[Piece]:
        import pyarrow
        import pyarrow.parquet

        try:
            file = pyarrow.parquet.ParquetFile(self.path)
        except pyarrow.ArrowInvalid as error:
            raise UserError(f"{self.path} is not a parquet file: {error}") from error
        with file:
            if self.text_field not in file.schema_arrow.names:
                _refuse_field(self.text_field, file.schema_arrow.names, str(self.path))
            rows = 0
            for batch in file.iter_batches(batch_size=256, columns=[self.text_field]):
                for text in batch.column(0).to_pylist():
                    rows += 1
                    where = f"{self.path} row {rows}"
                    yield from cut(_text_of({self.text_field: text}, self.text_field, where))
                self.consumed = self.size * rows // file.metadata.num_rows

    def _decompressed(self, raw: BinaryIO) -> Any:
        if self.path.suffix == ".xz":
            return lzma.open(raw)
        if self.path.suffix == ".gz":
            return gzip.open(raw)
        if self.path.suffix == ".zst":
            import pyarrow

            return io.BufferedReader(_Readable(pyarrow.CompressedInputStream(raw, "zstd")))
        return raw


class _Readable(io.RawIOBase):
    """Arrow's stream as one of Python's, which text streams are put on."""

    def __init__(self, stream: Any):
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._stream.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


class TfdsInput:
    """A split of a TFDS data set stored as array_record, read without TensorFlow."""

    def __init__(self, spec: str, text_field: str):
        data_set, split = parse_tfds(spec)
        import tensorflow_datasets as tfds  # takes seconds, and few need it

        self.name = f"tfds:{data_set}:{split}"
        self.text_field = text_field
        self.consumed = 0
        try:
            self._builder = tfds.builder(data_set, file_format="array_record")
            self._builder.download_and_prepare(file_format="array_record")
            self._records = self._builder.as_data_source(split=split)
        except Exception as error:  # TFDS raises a dozen kinds, down to bare AssertionError
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"cannot open {spec} with TFDS: {reason[0]}") from error
        self.size = len(self._records)
        if self.size == 0:
            raise UserError(f"{spec} is empty")
        self._split = split

    def sha256(self) -> str:
        """Digest of what TFDS knows the data by: full name with version, split and its sizes."""
        whole = {
            name: [info.num_bytes, info.shard_lengths]
            for name, info in self._builder.info.splits.items()
        }
        return sha256_of_json([self._builder.info.full_name, self._split, self.size, whole])

    def pieces(self) -> Iterator[Piece]:
        for index in range(self.size):
            record = self._records[index]
            self.consumed = index + 1
            yield from cut(_text_of(record, self.text_field, f"{self.name} record {index}"))


def parse_tfds(spec: str) -> tuple[str, str]:
    """`tfds:NAME[:SPLIT]` as (name, split); NAME may end in a version, as in `lm1b:1.1.0`."""
    parts = re.fullmatch(r"tfds:([^:]+(?::[0-9][0-9.*]*)?)(?::(.+))?", spec)
    if parts is None:
        raise UserError(f"{spec} is not tfds:NAME or tfds:NAME:SPLIT")
    return parts[1], parts[2] or "train"


def split_documents(chunks: Iterable[str]) -> Iterator[Piece]:
    """Pieces of the documents in a stream of text, which END_OF_TEXT separates.

    What stands between separators is the document, unchanged; blank documents are left out.
    """
    pending, within = "", False  # text not yet passed on; whether its document already began
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(END_OF_TEXT)
        for text in complete:
            yield from cut(text, continues=within)
            within = False
        while len(pending) > 2 * PIECE_CHARACTERS:
            # The rest stays longer than a separator, which may have arrived in part.
            at = _boundary(pending)
            yield Piece(pending[:at], False)
            pending, within = pending[at:], True
    yield from cut(pending, continues=within)


def cut(text: str, *, continues: bool = False) -> Iterator[Piece]:
    """Pieces of the rest of one document; nothing for a blank document.

    Args:
      text: a whole document, or its end if `continues`.
    """
    if not continues and not text.strip():
        return
    while len(text) > 2 * PIECE_CHARACTERS:
        at = _boundary(text)
        yield Piece(text[:at], False)
        text = text[at:]
    yield Piece(text, True)


def _boundary(text: str) -> int:
    """Where a piece ends: before a space between letters, near PIECE_CHARACTERS.

    Byte-level pre-tokenizers break there in any case, so the tokens of the pieces are those of
    the whole. Text without such a space in the piece is cut regardless.
    """
    at = PIECE_CHARACTERS
    while (at := text.rfind(" ", 1, at)) > 0:
        if text[at - 1].isalpha() and text[at + 1].isalpha():
            return at
    return PIECE_CHARACTERS


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where} is not JSON to read: it is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}") from error


def _text_of(record: Any, field: str, where: str) -> str:
    if not isinstance(record, dict):
        raise UserError(f"{where} is no record with fields but a {type(record).__name__}")
    if field not in record:
        _refuse_field(field, record, where)
    text = record[field]
    try:
        if isinstance(text, bytes):
            return text.decode()
        if isinstance(text, str):
            text.encode()
            return text
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise UserError(f"{where}: field {field!r} is not UTF-8: {error.reason}") from error
    raise UserError(f"{where}: field {field!r} is not text but {type(text).__name__}")


def _refuse_field(field: str, present: Iterable[str], where: str) -> None:
    names = ", ".join(map(repr, present))
    raise UserError(f"{where} has no field {field!r} (--text_field); it has {names}")


def _kind(path: Path) -> str | None:
    """text, json or parquet by the file's name; None for anything else."""
    kind = KINDS.get(_suffix(path))
    return None if kind == "parquet" and path.suffix in COMPRESSIONS else kind


def _suffix(path: Path) -> str:
    """The ending that tells the kind, that of a compression left out."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix


def _allowed_kinds() -> str:
    return f"one of {', '.join(KINDS)} ({', '.join(COMPRESSIONS)} may follow, but for .parquet)"
