"""Splits of TFDS data sets as documents."""

import re
from collections.abc import Iterator
from typing import Any

from looped_jax.data.sources.pieces import Piece, cut
from looped_jax.data.sources.records import text_of
from looped_jax.errors import UserError
from looped_jax.files import sha256_of_json


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

    def stamp(self) -> list[Any]:
        return [self.sha256()]

    def pieces(self) -> Iterator[Piece]:
        for index in range(self.size):
            record = self._records[index]
            self.consumed = index + 1
            yield from cut(text_of(record, self.text_field, f"{self.name} record {index}"))


def parse_tfds(spec: str) -> tuple[str, str]:
    """`tfds:NAME[:SPLIT]` as (name, split); NAME may end in a version, as in `lm1b:1.1.0`."""
    parts = re.fullmatch(r"tfds:([^:]+(?::[0-9][0-9.*]*)?)(?::(.+))?", spec)
    if parts is None:
        raise UserError(f"{spec} is not tfds:NAME or tfds:NAME:SPLIT")
    return parts[1], parts[2] or "train"
