"""Several folders of prepared data as one, in stated shares of tokens.

    python -m looped_jax.data.mix --parts=data/web:0.7,data/books:0.3 --out=data/mixed

Training visits all windows of a folder in one random order, so shares of tokens are shares of what
it sees. Every part gives its first documents, as many that no part has to be seen twice: the one
that is smallest for its weight is used up. Whole shards are linked where the file system can and
copied otherwise; the held-out text is that of all parts, one after another. The parts need to have
one tokenizer. Typed again, the command finds its finished work.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from looped_jax import cli
from looped_jax.data import shards
from looped_jax.data.shards import STREAMS, TokenData, TokenStream
from looped_jax.errors import UserError
from looped_jax.files import replacing_folder, sha256_of_file, write_bytes

TRAIN = STREAMS[0]
COUNTS = ("tokens", "bytes", "documents")


class Part(NamedTuple):
    """A folder of prepared data and its weight, above 0."""

    folder: Path
    weight: float


def parse_parts(texts: list[str]) -> list[Part]:
    """Parts from ["data/web:0.7", …].

    Raises:
      UserError: fewer than two, or not FOLDER:WEIGHT.
    """
    parts = []
    for text in texts:
        folder, colon, weight = text.rpartition(":")
        try:
            parts.append(Part(Path(folder), float(weight)))
        except ValueError:
            colon = ""
        if not colon or not 0 < parts[-1].weight < float("inf"):
            raise UserError(f"--parts={text}; allowed: FOLDER:WEIGHT with a weight above 0")
    if len(parts) < 2:
        raise UserError(f"--parts={','.join(texts)}; allowed: two or more, with commas")
    return parts


def mix(parts: list[Part], out: Path, say: Callable[[str], None] = print) -> TokenData:
    """Makes `out` hold the mixture, whole or not at all, unless it does already.

    Raises:
      UserError: parts of different tokenizers or tasks, or `out` holds something else.
    """
    opened = [TokenData.open(part.folder) for part in parts]
    _refuse_unlike(opened)
    total = sum(part.weight for part in parts)
    shares = [part.weight / total for part in parts]
    tokens = min(len(data.train) / share for data, share in zip(opened, shares, strict=True))
    request = {
        "mixture": [
            {"share": share, "digest": data.digest}
            for data, share in zip(opened, shares, strict=True)
        ]
    }
    if out.exists():
        found = TokenData.open(out)
        if found.manifest["request"] != request:
            raise UserError(f"{out} holds other data: choose another --out")
        say(f"{out} is already mixed")
        return found
    with replacing_folder(out) as aside:
        taken = [
            _take(data, int(tokens * share), aside, number)
            for number, (data, share) in enumerate(zip(opened, shares, strict=True))
        ]
        _write_manifest(aside, opened[0], request, taken)
    for part, each in zip(parts, taken, strict=True):
        say(f"{part.folder}: {each['counts'][TRAIN]['tokens']:,} training tokens")
    return TokenData.open(out)


def _refuse_unlike(opened: list[TokenData]) -> None:
    first = opened[0]
    for data in opened[1:]:
        if data.manifest["tokenizer"]["sha256"] != first.manifest["tokenizer"]["sha256"]:
            raise UserError(
                f"{data.folder} has another tokenizer than {first.folder}; allowed: one"
            )
        if data.rows != first.rows:
            raise UserError(
                f"{data.folder} has rows={data.rows}; allowed: {first.rows}, as {first.folder} has"
            )
    if any(data.loop_targets for data in opened):
        raise UserError("a part has targets by loop; allowed: text, whose target is the next token")


def _take(data: TokenData, tokens: int, out: Path, number: int) -> dict[str, Any]:
    """Puts the first documents of a part, and all of its held-out text, into `out`.

    Returns:
      Its counts by split and its streams. Bytes of text are in proportion to tokens where documents
      are left out.
    """
    splits, streams = data.manifest["splits"], data.manifest["streams"]
    kept = _end_of_documents(data.train, tokens, data.end_of_text_id)
    whole = kept == len(data.train)
    documents = splits[TRAIN]["documents"] if whole else _count(data.train, kept, data)
    share = kept / len(data.train)
    train = {"tokens": kept, "bytes": round(splits[TRAIN]["bytes"] * share), "documents": documents}
    lengths = {TRAIN: kept, **{name: streams[name]["length"] for name in STREAMS[1:]}}
    return {
        "counts": {TRAIN: train, "validation": splits["validation"]},
        "streams": {
            name: _take_shards(data, streams[name], name, length, out, number)
            for name, length in lengths.items()
        },
    }


def _end_of_documents(stream: TokenStream, tokens: int, end_of_text_id: int) -> int:
    """The largest number of tokens up to `tokens` that ends a document.

    Raises:
      UserError: not even the first document ends there.
    """
    stop, step = tokens, 1 << 20
    while stop > 0:
        start = max(0, stop - step)
        ends = np.flatnonzero(stream.read(start, stop - start) == end_of_text_id)
        if len(ends):
            return start + int(ends[-1]) + 1
        stop = start
    raise UserError(f"a part is to give {tokens:,} tokens, less than its first document has")


def _count(stream: TokenStream, tokens: int, data: TokenData) -> int:
    """Documents in the first tokens."""
    step = 1 << 24
    return sum(
        int((stream.read(at, min(step, tokens - at)) == data.end_of_text_id).sum())
        for at in range(0, tokens, step)
    )


def _take_shards(
    data: TokenData, stream: dict[str, Any], name: str, length: int, out: Path, number: int
) -> dict[str, Any]:
    """Links the shards of a stream's first numbers; the last one is cut where need be."""
    taken = []
    left = length
    for index, shard in enumerate(stream["shards"]):
        if left <= 0:
            break
        source = data.folder / shard["file"]
        path = out / f"{name}-{number:05d}{f'-{index:03d}' if index else ''}.npy"
        entry = {"file": path.name, "length": min(left, shard["length"]), "sha256": shard["sha256"]}
        if left >= shard["length"]:
            _link(source, path)
        else:
            with open(path, "wb") as file:
                np.save(file, np.load(source, mmap_mode="r")[:left])
            entry["sha256"] = sha256_of_file(path)
        taken.append(entry)
        left -= shard["length"]
    return {"dtype": stream["dtype"], "length": length, "shards": taken}


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, path)


def _write_manifest(
    folder: Path, first: TokenData, request: dict[str, Any], taken: list[dict[str, Any]]
) -> None:
    write_bytes(folder / shards.TOKENIZER, first.tokenizer_path.read_bytes())
    streams = {
        name: {
            "dtype": first.manifest["streams"][name]["dtype"],
            "length": sum(each["streams"][name]["length"] for each in taken),
            "shards": [shard for each in taken for shard in each["streams"][name]["shards"]],
        }
        for name in STREAMS
    }
    splits = {
        split: {key: sum(each["counts"][split][key] for each in taken) for key in COUNTS}
        for split in STREAMS[:2]
    }
    shards.write_manifest(
        folder,
        {
            "request": request, "rows": first.rows,
            "tokenizer": first.manifest["tokenizer"], "splits": splits, "streams": streams,
            "loop_targets": 0, "unspelled": first.manifest["unspelled"],
            "versions": first.manifest["versions"],
        },
    )  # fmt: skip


def define_flags() -> None:
    flags.DEFINE_list("parts", None, "FOLDER:WEIGHT of every part.", required=True)
    flags.DEFINE_string("out", None, "Folder to make.", required=True)


def main(_: list[str]) -> None:
    given = flags.FLAGS
    mix(parse_parts(given.parts), Path(given.out), lambda line: print(line, flush=True))


if __name__ == "__main__":
    define_flags()
    cli.run(main)
