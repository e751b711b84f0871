"""Files of text, JSON or parquet as documents."""

import gzip
import io
import itertools
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from looped_jax.data.sources import pieces
from looped_jax.data.sources.pieces import Piece
from looped_jax.data.sources.reading import Reading
from looped_jax.data.sources.records import parsed, refuse_field, text_of
from looped_jax.errors import UserError
from looped_jax.files import sha256_of_file

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


class FileInput:
    """A text, JSON or parquet file; the former two also compressed with xz, gzip or zstd."""

    def __init__(self, path: Path, text_field: str):
        self.path = path
        self.name = str(path.resolve())
        self.text_field = text_field
        self.consumed = 0
        self._digest: str | None = None  # of the bytes that the newest whole reading found
        kind = kind_of(path)
        if kind is None:
            raise UserError(f"{path} is not {allowed_kinds()}")
        self.kind = kind
        self.size = path.stat().st_size
        if self.size == 0:
            raise UserError(f"{path} is empty")

    def sha256(self) -> str:
        if self._digest is not None:
            return self._digest
        try:
            return sha256_of_file(self.path)
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error

    def stamp(self) -> list[int]:
        """Size and time of change (ns): files with the same stamp are not read to be compared."""
        stat = self.path.stat()
        return [stat.st_size, stat.st_mtime_ns]

    def pieces(self) -> Iterator[Piece]:
        self.consumed = 0
        readers = {"text": self._text, "json": self._json, "parquet": self._parquet}
        try:
            with Reading(self.path) as reading:
                yield from readers[self.kind](reading)
                self._digest = reading.digest()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.path} is not UTF-8: {error.reason}") from error
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"cannot decompress {self.path}: {error}") from error
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error
        self.consumed = self.size

    def _text(self, reading: Reading) -> Iterator[Piece]:
        raw = reading.stream()
        # newline="": the text keeps its line ends, so that bytes are counted as they are.
        stream = io.TextIOWrapper(self._decompressed(raw), encoding="utf-8", newline="")
        yield from pieces.split_documents(self._chunks(stream, raw))

    def _chunks(self, stream: io.TextIOWrapper, raw: io.BufferedReader) -> Iterator[str]:
        while chunk := stream.read(pieces.PIECE_CHARACTERS):
            self.consumed = raw.tell()
            yield chunk

    def _json(self, reading: Reading) -> Iterator[Piece]:
        """A record on each line, or one value: a list of records, or a record.

        A file of lines is read line by line, whatever its name; one value is read whole.
        """
        raw = reading.stream()
        stream = io.TextIOWrapper(self._decompressed(raw), encoding="utf-8", newline="\n")
        lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
        first = next(lines, (1, "{}"))
        if self._is_value(first[1]):
            yield from self._records(first[1] + stream.read())
            return
        for number, line in itertools.chain([first], lines):
            self.consumed = raw.tell()
            where = f"{self.path} line {number}"
            yield from pieces.cut(text_of(parsed(line, where), self.text_field, where))

    def _is_value(self, first: str) -> bool:
        """Whether a .json file's first line is not a record but the start of one value."""
        if suffix_of(self.path) != ".json":
            return False
        try:
            return not isinstance(json.loads(first), dict)
        except (ValueError, RecursionError):
            return True

    def _records(self, text: str) -> Iterator[Piece]:
        value = parsed(text, str(self.path))
        for number, record in enumerate(value if isinstance(value, list) else [value], start=1):
            where = f"{self.path} record {number}"
            yield from pieces.cut(text_of(record, self.text_field, where))

    def _parquet(self, reading: Reading) -> Iterator[Piece]:
        import pyarrow
        import pyarrow.parquet

        try:
            # They stand at the end: read first, so that the rest is read from start to end.
            metadata = pyarrow.parquet.read_metadata(self.path)
            file = pyarrow.parquet.ParquetFile(reading.stream(), metadata=metadata)
        except pyarrow.ArrowInvalid as error:
            raise UserError(f"{self.path} is not a parquet file: {error}") from error
        with file:
            if self.text_field not in file.schema_arrow.names:
                refuse_field(self.text_field, file.schema_arrow.names, str(self.path))
            rows = 0
            for batch in file.iter_batches(batch_size=256, columns=[self.text_field]):
                for text in batch.column(0).to_pylist():
                    rows += 1
                    where = f"{self.path} row {rows}"
                    yield from pieces.cut(text_of({self.text_field: text}, self.text_field, where))
                self.consumed = self.size * rows // file.metadata.num_rows

    def _decompressed(self, raw: io.BufferedReader) -> Any:
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


def kind_of(path: Path) -> str | None:
    """text, json or parquet by the file's name; None for anything else."""
    kind = KINDS.get(suffix_of(path))
    return None if kind == "parquet" and path.suffix in COMPRESSIONS else kind


def suffix_of(path: Path) -> str:
    """The ending that tells the kind, that of a compression left out."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix


def allowed_kinds() -> str:
    return f"one of {', '.join(KINDS)} ({', '.join(COMPRESSIONS)} may follow, but for .parquet)"
