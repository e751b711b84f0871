"""A folder of prepared data: token shards, the tokenizer, and the manifest that vouches for them.

manifest.json        written last: what was prepared from what, counts, digests
tokenizer.json
train-00000.npy …    the documents one after another, each followed by the end-of-text token; a file
                     for each unit of the input, and more (train-00000-001.npy …) for a large one
validation-00000.npy …
validation-bytes-00000.npy …   for each validation token, the bytes of text it covers
train-targets-00000.npy …      for each token, what each loop is to say in its place; tasks only
validation-targets-00000.npy …
"""

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.data import tokenizer as tokenizers
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.described import Description
from looped_jax.errors import UserError
from looped_jax.files import read_json, replacing, sha256_of_file, sha256_of_json, write_json

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
FORMAT = 1
DTYPES = ("uint16", "uint32")
SHARD_TOKENS = 1 << 26
# The streams of numbers that a folder holds; the first two are also the splits.
STREAMS = ("train", "validation", "validation-bytes")
# And those of data with a target for each loop.
TARGET_STREAMS = ("train-targets", "validation-targets")
# How training cuts its stream into rows of T + 1 tokens, as the manifest says: "windows", which it
# need not say, overlap by one token, so that every token is a target; "packed" rows follow each
# other, every token in one of them. Documents cross the ends of both.
ROWS = ("windows", "packed")


class TokenStream:
    """Shards read as one long array of numbers, mapped into memory and not loaded."""

    def __init__(self, folder: Path, shards: list[dict[str, Any]], dtype: str):
        self._parts = [_open_shard(folder / s["file"], s["length"], dtype) for s in shards]
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._parts else 0

    def read(self, start: int, length: int) -> np.ndarray:
        """`length` numbers from position `start` on, int32; fewer at the end of the stream."""
        stop = min(start + length, len(self))
        out = np.empty(stop - start, np.int32)
        while start < stop:
            index = int(np.searchsorted(self._ends, start, side="right"))
            part, begin = self._parts[index], int(self._ends[index]) - len(self._parts[index])
            taken = part[start - begin : stop - begin]
            out[len(out) - (stop - start) :][: len(taken)] = taken
            start += len(taken)
        return out

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The windows [start, start + length) of each start: int32 (starts, length).

        Every window has to lie within the stream.
        """
        out = np.empty((len(starts), length), np.int32)
        index_of_start = np.searchsorted(self._ends, starts, side="right")
        for index in np.unique(index_of_start):
            part, end = self._parts[index], int(self._ends[index])
            rows = np.flatnonzero(index_of_start == index)
            whole = rows[starts[rows] + length <= end]
            if len(whole):
                view = np.lib.stride_tricks.sliding_window_view(part, length)
                out[whole] = view[starts[whole] - (end - len(part))]
            for row in rows[starts[rows] + length > end]:
                out[row] = self.read(int(starts[row]), length)
        return out


@dataclass(frozen=True)
class TokenData:
    """Prepared data, opened for reading. Make one with `TokenData.open`.

    Attributes:
      folder: where it lies.
      manifest: the content of manifest.json.
      train, validation: token ids as `TokenStream`.
      validation_bytes: bytes of text that each validation token covers; end-of-text covers none.
      loop_targets: K, targets by loop that every token has; 0 for text, whose target is the token.
      train_targets, validation_targets: those, K numbers a token; empty for text.
      opened: names of the streams that were opened; the others are empty.
    """

    folder: Path
    manifest: dict[str, Any]
    train: TokenStream
    validation: TokenStream
    validation_bytes: TokenStream
    loop_targets: int
    train_targets: TokenStream
    validation_targets: TokenStream
    opened: tuple[str, ...] = STREAMS

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        streams: Collection[str] = (*STREAMS, *TARGET_STREAMS),
    ) -> "TokenData":
        """Opens a folder that `looped_jax.data.prepare` finished.

        Streams that are not named stay closed and empty: an evaluation needs no training text.
        Checks the manifest and that each shard has its size, dtype and length; `verify` checks the
        content. Raises UserError for what is missing, unfinished, damaged or of another format.
        """
        folder = Path(folder)
        if not (folder / MANIFEST).exists():
            state = "holds no prepared data" if folder.is_dir() else "does not exist"
            raise UserError(
                f"data folder {folder} {state}: make it with "
                f"python -m looped_jax.data.prepare --source=… --out={folder}"
            )
        manifest = read_manifest(folder)
        described = manifest["streams"]
        opened = tuple(name for name in streams if name in described)

        def stream(name: str) -> TokenStream:
            if name not in described:  # targets by loop, of text
                return TokenStream(folder, [], "")
            shards = described[name]["shards"] if name in opened else []
            return TokenStream(folder, shards, described[name]["dtype"])

        train, validation, validation_bytes = map(stream, STREAMS)
        train_targets, validation_targets = map(stream, TARGET_STREAMS)
        loops = manifest["loop_targets"]
        return cls(
            folder, manifest, train, validation, validation_bytes, loops, train_targets,
            validation_targets, opened,
        )  # fmt: skip

    @property
    def digest(self) -> str:
        """SHA-256 over all token shards, the tokenizer and the counts, as the manifest has them.

        Equal digests mean equal tokens in equal order, wherever and from whatever path they were
        prepared; a run stores it and refuses to go on with other data.
        """
        return content_digest(self.manifest)

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / TOKENIZER

    @property
    def rows(self) -> str:
        """How training cuts the text into rows, one of ROWS."""
        return self.manifest.get("rows", ROWS[0])

    @property
    def vocab_size(self) -> int:
        """Number of token ids a model of this data needs."""
        return self.manifest["tokenizer"]["vocab_size"]

    @property
    def end_of_text_id(self) -> int:
        """The id after each document; a token that follows it begins a document."""
        return self.manifest["tokenizer"]["end_of_text_id"]

    @cached_property
    def bytes_per_token(self) -> float:
        """Bytes of validation text per validation token that is a target (all but the first)."""
        covered = self.manifest["splits"]["validation"]["bytes"] - self.validation_bytes.read(0, 1)
        return float(covered[0] / (len(self.validation) - 1))

    @property
    def bits_per_byte_factor(self) -> float:
        """What turns the mean loss of all validation targets, in nats, into bits per byte.

        Exact for the whole split. For a part of it, sum the nats and the bytes of the same targets
        (see `pipeline.validation_batches`).
        """
        return float(1 / (np.log(2) * self.bytes_per_token))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens."""
        end_of_text = self.manifest["tokenizer"]["end_of_text"]
        return tokenizers.load(self.tokenizer_path, end_of_text)

    @cached_property
    def digests(self) -> dict[Path, str]:
        """SHA-256 of the tokenizer and every shard that is opened, as the manifest has it."""
        found = {self.tokenizer_path: self.manifest["tokenizer"]["sha256"]}
        for name in self.opened:
            for shard in self.manifest["streams"][name]["shards"]:
                found[self.folder / shard["file"]] = shard["sha256"]
        return found

    @property
    def size(self) -> int:
        """Bytes of all files that `verify` reads."""
        return size_of(self.digests)

    def verify(self) -> None:
        """Reads everything that is opened and compares digests; raises as `verified` does."""
        for _ in self.verified():
            pass

    def verify_beginning(self, stream: str, length: int) -> None:
        """Compares the shards with a stream's first numbers; raises as `verified` does."""
        start = 0
        for shard in self.manifest["streams"][stream]["shards"]:
            if start >= length:
                break
            _verify(self.folder / shard["file"], shard["sha256"])
            start += shard["length"]

    def verified(self, paths: Iterable[Path] | None = None) -> Iterator[int]:
        """Reads files of what is opened, all unless named, and yields the bytes of each good one.

        Raises UserError naming a file that is missing or changed.
        """
        for path in self.digests if paths is None else paths:
            _verify(path, self.digests[path])
            yield path.stat().st_size


class ShardWriter:
    """Writes a stream of numbers as shards of at most SHARD_TOKENS.

    Attributes:
      length: numbers taken so far.
      shards: what the manifest says about each shard that is written.
    """

    def __init__(self, folder: Path, name: str, unit: int, dtype: str):
        self._folder, self._dtype = folder, np.dtype(dtype)
        self._name = f"{name}-{unit:05d}"
        self._waiting: list[np.ndarray] = []
        self._n_waiting = 0
        self.length = 0
        self.shards: list[dict[str, Any]] = []

    def add(self, numbers: np.ndarray) -> None:
        """Appends to the stream; whole shards go to disk."""
        self._waiting.append(numbers.astype(self._dtype, casting="unsafe"))
        self._n_waiting += len(numbers)
        self.length += len(numbers)
        if self._n_waiting >= SHARD_TOKENS:
            joined = np.concatenate(self._waiting)
            while len(joined) >= SHARD_TOKENS:
                self._write(joined[:SHARD_TOKENS])
                joined = joined[SHARD_TOKENS:]
            self._waiting, self._n_waiting = [joined], len(joined)

    def finish(self) -> dict[str, Any]:
        """Writes what is left. Returns the stream's entry in the manifest."""
        if self._n_waiting:
            self._write(np.concatenate(self._waiting))
            self._waiting, self._n_waiting = [], 0
        return {"dtype": self._dtype.name, "length": self.length, "shards": self.shards}

    def _write(self, numbers: np.ndarray) -> None:
        more = f"-{len(self.shards):03d}" if self.shards else ""
        path = self._folder / f"{self._name}{more}.npy"
        with replacing(path) as file:
            np.save(file, numbers)
        entry = {"file": path.name, "length": len(numbers), "sha256": sha256_of_file(path)}
        self.shards.append(entry)


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of the files that are there."""
    return sum(path.stat().st_size for path in paths if path.exists())


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Writes manifest.json: the content, the format, and a digest of both."""
    content = {"format": FORMAT} | content
    write_json(folder / MANIFEST, content | {"digest": sha256_of_json(content)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The content of manifest.json, every key that is used later looked at.

    Raises:
      UserError: it is of another format, was changed, or lacks a key or has a false one.
    """
    path = folder / MANIFEST
    manifest = Description(read_json(path), str(path))
    if manifest.table.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {manifest.table.get('format')!r}; this version reads {FORMAT}: "
            "prepare the data again"
        )
    if "digest" not in manifest:
        raise UserError(f"{path} has no digest of its own: prepare the data again")
    content = {key: value for key, value in manifest.table.items() if key != "digest"}
    if sha256_of_json(content) != manifest.get("digest", str):
        raise UserError(f"{path} does not match its digest: it was changed by hand")
    tokenizer = manifest.section("tokenizer")
    for key in ("sha256", "end_of_text"):
        tokenizer.get(key, str)
    vocab_size = tokenizer.count("vocab_size", least=1)
    if tokenizer.count("end_of_text_id") >= vocab_size:
        raise UserError(f"{path}: tokenizer.end_of_text_id is not below its vocab_size")
    if manifest.table.get("rows", ROWS[0]) not in ROWS:
        raise UserError(f"{path}: rows = {manifest.table['rows']!r}; allowed: {', '.join(ROWS)}")
    loops = manifest.count("loop_targets")
    names = (*STREAMS, *TARGET_STREAMS) if loops else STREAMS
    lengths = {name: _check_stream(manifest.section("streams").section(name)) for name in names}
    expected = {"validation-bytes": lengths["validation"]}
    for split in STREAMS[:2]:
        counts = manifest.section("splits").section(split)
        for key in ("bytes", "documents"):
            counts.count(key, least=1)
        expected[split] = counts.count("tokens", least=2)
        expected[f"{split}-targets"] = loops * lengths[split]
    for name, length in lengths.items():
        if length != expected[name]:
            raise UserError(
                f"{path}: stream {name} has length {length}; allowed by the counts: "
                f"{expected[name]}"
            )
    return dict(manifest.table)


def _check_stream(stream: Description) -> int:
    """The length of a stream whose shards make it up."""
    if stream.get("dtype", str) not in DTYPES:
        raise UserError(f"{stream.name}: dtype; allowed: {', '.join(DTYPES)}")
    length, total = stream.count("length"), 0
    for number, entry in enumerate(stream.get("shards", list)):
        shard = Description(entry, f"{stream.name}: shard {number}")
        name = shard.get("file", str)
        if Path(name).name != name or not name.endswith(".npy"):
            raise UserError(f"{shard.name}: file {name[:80]!r}; allowed: a .npy file beside it")
        total += shard.count("length")
        shard.get("sha256", str)
    if total != length:
        raise UserError(f"{stream.name}: length = {length}; allowed: that of its shards, {total}")
    return length


def content_digest(manifest: dict[str, Any]) -> str:
    """SHA-256 over what is learned from: the tokens, what is counted of them, and rows if packed.

    Not over paths or versions.
    """
    tokenizer = {key: value for key, value in manifest["tokenizer"].items() if key != "file"}
    streams = {
        name: [stream["dtype"], stream["length"], *([s["length"], s["sha256"]] for s in shards)]
        for name, stream in manifest["streams"].items()
        for shards in [stream["shards"]]
    }
    counts = [manifest["splits"], manifest["loop_targets"]]
    rows = manifest.get("rows", ROWS[0])
    packed = [] if rows == ROWS[0] else [rows]
    return sha256_of_json([manifest["format"], tokenizer, counts, streams, *packed])


def shard_files(folder: Path) -> Iterator[Path]:
    """Shards in a folder, finished or not, whatever the manifest says."""
    for name in (*STREAMS, *TARGET_STREAMS):
        yield from folder.glob(f"{name}-[0-9]*.npy*")


def _verify(path: Path, digest: str) -> None:
    if not path.exists():
        raise UserError(f"{path} is missing: prepare the data again into a new folder")
    if sha256_of_file(path) != digest:
        raise UserError(f"{path} is not the file that was prepared")


def _open_shard(path: Path, length: int, dtype: str) -> np.ndarray:
    try:
        # Behind a plain view: slicing np.memmap itself costs microseconds a slice.
        mapped = np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: prepare the data again into a new folder") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if mapped.shape != (length,) or mapped.dtype != dtype:
        raise UserError(
            f"{path} holds {mapped.dtype}{list(mapped.shape)}, "
            f"but its manifest says {dtype}[{length}]"
        )
    return mapped
