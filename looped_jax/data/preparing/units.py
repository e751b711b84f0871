"""Units of work of a preparation: input files that become shards and one entry of the manifest.

A unit is read once, in one process, and gives the same shards wherever it is encoded. Its entry is
written last, to `.units/` in the folder that is being prepared: what has one is done.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.data.preparing.spelling import Spelling, refuse_end_of_text
from looped_jax.data.shards import ShardWriter
from looped_jax.data.sources.pieces import Piece
from looped_jax.data.sources.source import Input, Source, Split
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.files import write_json

FOLDER = ".units"  # hidden: no source that holds the folder reads it
SPLITS: tuple[Split, ...] = ("train", "validation")
# Small files that follow each other are one unit until it is so large; a large file is one alone.
UNIT_BYTES = 1 << 28
# Pieces encoded together: enough to occupy all cores, little enough to hold.
BATCH_CHARACTERS = 1 << 22

# Hears of input that was read, in the unit of its size, and of the characters in it.
Meter = Callable[[int, int], None]


@dataclass(frozen=True)
class Unit:
    """Inputs that are read together.

    Attributes:
      split: of their text; where a fraction is held out, both splits come out of them.
      number: among the units of its split.
    """

    split: Split
    number: int
    inputs: list[Input]

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05d}"

    def entry_path(self, folder: Path) -> Path:
        return folder / FOLDER / f"{self.name}.json"


def plan_units(source: Source) -> list[Unit]:
    """All units, which depend on the inputs and their sizes alone."""
    units = []
    of_split: dict[Split, list[Input]] = {"train": source.train, "validation": source.validation}
    for split, inputs in of_split.items():
        groups: list[list[Input]] = []
        for each in inputs:
            together = groups and sum(i.size for i in groups[-1]) + each.size <= UNIT_BYTES
            if together:
                groups[-1].append(each)
            else:
                groups.append([each])
        units += [Unit(split, number, group) for number, group in enumerate(groups)]
    return units


def encode_unit(
    unit: Unit, source: Source, encoder: Tokenizer, folder: Path, meter: Meter
) -> dict[str, Any]:
    """Writes the shards of a unit, then its entry; returns the entry.

    Raises:
      UserError: input that cannot be read, or that the tokenizer cannot spell.
    """
    writers = {split: _SplitWriter(unit, split, source, encoder, folder) for split in SPLITS}
    stamps = [i.stamp() for i in unit.inputs]  # before they are read: a later change shows
    for split, batch in _batches(_followed(unit, source, meter)):
        writers[split].add(batch)
    held_out = source.held_out_fraction is not None
    written = [writers[split] for split in SPLITS if held_out or split == unit.split]
    where = "train and validation" if held_out else unit.split
    entry = {
        "unit": unit.name,
        "inputs": [
            {"name": i.name, "split": where, "sha256": i.sha256(), "stamp": stamp}
            for i, stamp in zip(unit.inputs, stamps, strict=True)
        ],
        "splits": {each.split: each.counts for each in written},
        "streams": {name: s for each in written for name, s in each.finish().items()},
        "spelling": {each.split: each.spelling.counts for each in written},
    }
    write_json(unit.entry_path(folder), entry)
    return entry


def _followed(unit: Unit, source: Source, meter: Meter) -> Iterator[tuple[Split, Piece]]:
    for each in unit.inputs:
        told = 0
        for split, piece in source.parts([each], unit.split):
            yield split, piece
            meter(each.consumed - told, len(piece.text))
            told = each.consumed
        meter(each.size - told, 0)


def _batches(pieces: Iterator[tuple[Split, Piece]]) -> Iterator[tuple[Split, list[Piece]]]:
    """Pieces of one split together, those of each in their order."""
    waiting: dict[Split, list[Piece]] = {split: [] for split in SPLITS}
    characters = dict.fromkeys(SPLITS, 0)
    for split, piece in pieces:
        waiting[split].append(piece)
        characters[split] += len(piece.text)
        if characters[split] >= BATCH_CHARACTERS:
            yield split, waiting[split]
            waiting[split], characters[split] = [], 0
    for split, rest in waiting.items():
        if rest:
            yield split, rest


class _SplitWriter:
    """What a unit gives to a split: shards, counts, and how well the text is spelled."""

    def __init__(self, unit: Unit, split: Split, source: Source, encoder: Tokenizer, folder: Path):
        self.split, self._encoder, self._asked = split, encoder, source.loop_targets
        self.spelling = Spelling(encoder, split)
        dtype = "uint16" if encoder.vocab_size <= 1 << 16 else "uint32"
        writer = lambda name, dtype: ShardWriter(folder, name, unit.number, dtype)
        self._tokens = writer(split, dtype)
        self._covered = writer("validation-bytes", "uint32") if split == "validation" else None
        self._targets = writer(f"{split}-targets", dtype) if self._asked else None
        self._end_of_text = np.array([encoder.end_of_text_id])
        self._bytes = self._documents = 0

    @property
    def counts(self) -> dict[str, int]:
        return {
            "tokens": self._tokens.length, "bytes": self._bytes, "documents": self._documents,
        }  # fmt: skip

    def add(self, batch: list[Piece]) -> None:
        texts = [piece.text for piece in batch]
        if self._covered is None and self._encoder.spells_everything:
            ids_of_pieces = self._encoder.encode_batch(texts)
        else:
            measured = self._encoder.encode_and_measure(texts)
            self.spelling.add(measured)
            ids_of_pieces = [each.ids for each in measured]
        for piece, ids in zip(batch, ids_of_pieces, strict=True):
            refuse_end_of_text(ids, self._encoder, self._documents, self.split)
            self._add_piece(piece, ids)
        if self._covered is not None:
            for piece, each in zip(batch, measured, strict=True):
                self._covered.add(each.covered)
                if piece.ends_document:
                    self._covered.add(np.array([0]))

    def _add_piece(self, piece: Piece, ids: np.ndarray) -> None:
        self._tokens.add(ids)
        self._bytes += len(piece.text.encode())
        if piece.ends_document:
            self._tokens.add(self._end_of_text)
            self._documents += 1
        if self._asked and self._targets:
            self._targets.add(self._asked.of_ids(ids).ravel())
            if piece.ends_document:
                self._targets.add(np.repeat(self._end_of_text, self._asked.loops))

    def finish(self) -> dict[str, Any]:
        """Writes what is left. Returns the entries of its streams in the manifest."""
        streams: dict[str, Any] = {self.split: self._tokens.finish()}
        if self._targets is not None:
            streams[f"{self.split}-targets"] = self._targets.finish()
        if self._covered is not None:
            streams["validation-bytes"] = self._covered.finish()
        return streams
