"""Where text comes from: the bundled novels, files, or a data set of TFDS or the Hugging Face hub.

A source is read as a stream of pieces, so that neither a corpus nor one long document has to fit
into memory. The same source gives the same pieces in the same order each time.
"""

import glob
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from looped_jax.data.sources.files import FileInput, allowed_kinds, kind_of
from looped_jax.data.sources.hub import open_hub
from looped_jax.data.sources.pieces import Piece
from looped_jax.data.sources.tfds import TfdsInput
from looped_jax.errors import UserError

Split = Literal["train", "validation"]

CORPUS = Path(__file__).parents[1] / "corpus"
BUNDLED_VALIDATION = "austen_persuasion.txt.xz"
# In a folder that `prepare` made or is about to.
OF_PREPARED_DATA = ("train-00000.npy", "preparing.json")
MOST_NAMED = 5


class Input(Protocol):
    """One thing that is read from start to end: a file, or a split of a TFDS data set."""

    name: str
    size: int
    """In the unit of `consumed`."""
    consumed: int
    """How much of `size` the newest reading has taken in."""

    def sha256(self) -> str:
        """Digest of the content: as the newest whole reading found it, else by a reading."""

    def stamp(self) -> list[Any]:
        """What changes when the content does, and costs no reading of it."""

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

    def parts(self, inputs: Iterable[Input], split: Split) -> Iterator[tuple[Split, Piece]]:
        """Streams inputs once, each piece with its split: `split` if none is held out of them."""
        for each in inputs:
            if self.held_out_fraction is None:
                yield from ((split, piece) for piece in each.pieces())
            else:
                yield from _parted(each.pieces(), self.held_out_fraction)

    def pieces(self, split: Split) -> Iterator[Piece]:
        """Streams the text of a split."""
        for part, piece in self.parts(self.inputs(split), split):
            if part == split:
                yield piece


def open_source(source: str, validation: str | None, text_field: str) -> Source:
    """Resolves what was asked for, without reading text.

    Args:
      source: `bundled`, `tfds:NAME[:SPLIT]`, `hf:REPO[:CONFIG[:SPLIT]]`, or a file, folder or glob
        of text, JSON or parquet.
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
    if spec.startswith("hf:"):
        return list(open_hub(spec, text_field))
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
        if kind_of(file) and not hidden(file) and file.parent not in prepared
    ]
    if not found:
        raise UserError(f"{given}: no file in this folder is {allowed_kinds()}")
    skipped = [file for file in everything if file not in set(found)]
    for does, files in (("reads", found), ("skips", skipped)):
        if files:
            notes.append(f"{given} {does} {len(files)} files: {_named(files, folder)}")
    return found


def _refuse_mixed(files: list[Path], given: str) -> None:
    """Raises UserError for files of several kinds: a README beside records is no document."""
    kinds: dict[str, list[Path]] = {}
    for file in files:
        kinds.setdefault(kind_of(file) or file.suffix, []).append(file)
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


def _parted(pieces: Iterable[Piece], fraction: float) -> Iterator[tuple[Split, Piece]]:
    """Parts documents by a hash of their first piece: equal documents never part."""
    split: Split = "train"
    at_start = True
    for piece in pieces:
        if at_start:
            digest = hashlib.sha256(piece.text.encode()).digest()
            held_out = int.from_bytes(digest[:8], "big") < fraction * 2**64
            split = "validation" if held_out else "train"
        yield split, piece
        at_start = piece.ends_document
