"""Data sets of the Hugging Face hub as documents, streamed by the `datasets` package."""

from collections.abc import Iterator
from typing import Any

from looped_jax.data.sources.pieces import Piece, cut
from looped_jax.data.sources.records import text_of
from looped_jax.errors import UserError
from looped_jax.files import sha256_of_json


def open_hub(spec: str, text_field: str) -> list["HubInput"]:
    """The shards of `hf:REPO[:CONFIG[:SPLIT]]`; CONFIG may be empty, SPLIT is "train" if left out.

    Raises:
      UserError: not such a name, no package `datasets`, or a data set that it cannot open.
    """
    parts = spec.removeprefix("hf:").split(":")
    if not parts[0] or len(parts) > 3:
        raise UserError(f"{spec}; allowed: hf:REPO, hf:REPO:CONFIG or hf:REPO:CONFIG:SPLIT")
    repo, config, split = (*parts, "", "")[:3]
    try:
        import datasets
    except ImportError:
        raise UserError(f"{spec} needs the package datasets: pip install datasets") from None
    try:
        streamed = datasets.load_dataset(
            repo, config or None, split=split or "train", streaming=True
        )
    except Exception as error:  # it raises those of every file format and of the network
        raise UserError(f"cannot open {spec}: {' '.join(str(error).split())[:200]}") from error
    return [HubInput(spec, streamed, i, text_field) for i in range(streamed.num_shards)]


class HubInput:
    """A shard of a data set. Its size is not known before it is read: it counts as one."""

    def __init__(self, spec: str, streamed: Any, index: int, text_field: str):
        self.name = f"{spec}:{index}-of-{streamed.num_shards}"
        self.size, self.consumed = 1, 0
        self._spec, self._streamed, self._index = spec, streamed, index
        self._text_field = text_field

    def sha256(self) -> str:
        """Digest of what the hub knows the data by: name, version and the sizes of its splits."""
        info = self._streamed.info
        splits = {name: split.num_examples for name, split in (info.splits or {}).items()}
        return sha256_of_json([self.name, str(info.version), splits])

    def stamp(self) -> list[Any]:
        return [self.sha256()]

    def pieces(self) -> Iterator[Piece]:
        self.consumed = 0
        shard = self._streamed.shard(self._streamed.num_shards, self._index)
        for number, record in enumerate(shard, 1):
            yield from cut(text_of(record, self._text_field, f"{self.name} record {number}"))
        self.consumed = 1
