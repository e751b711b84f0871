"""The folder of a preparation: what was asked for, what is there of it, what may be removed."""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from looped_jax.data import shards
from looped_jax.data.preparing import units
from looped_jax.data.sources.source import OF_PREPARED_DATA, Source
from looped_jax.described import Description
from looped_jax.errors import UserError
from looped_jax.files import read_json, sweep, write_json
from looped_jax.lock import Held, locked

# In the folder: held by the part that begins or completes it.
LOCK = ".lock-folder"
WAIT_SECONDS = 0.2
# In a folder whose preparation began and is not finished: what was asked for.
BEGUN = OF_PREPARED_DATA[1]


@contextlib.contextmanager
def one_after_another(
    lock: Path, wait: Callable[[str], None] = lambda holder: None
) -> Iterator[None]:
    """What parts that start or end together do one at a time; `wait` hears once of the holder."""
    me, told = f"process {os.getpid()} on {platform.node()}", False
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(lock, me))
                break
            except Held as holder:
                if not told:
                    wait(str(holder))
                told = True
                time.sleep(WAIT_SECONDS)
        yield


def begin(folder: Path, request: dict[str, Any], source: Source, *, alone: bool) -> None:
    """Makes sure that all in the folder belongs to this very request.

    Raises:
      UserError: other parts are at work on another one.
    """
    asked = {"request": request, "inputs": _stamps(source)}
    begun = folder / BEGUN
    if begun.exists() and read_json(begun) == json.loads(json.dumps(asked)):
        (folder / units.FOLDER).mkdir(exist_ok=True)
        return
    if begun.exists() and not alone:
        raise UserError(f"{begun} was asked for something else: remove {folder}, or choose another")
    # From here on the files in the folder are ours to write and, after a kill, to replace.
    write_json(begun, asked)
    for leftover in (*shards.shard_files(folder), *_entries(folder), folder / shards.TOKENIZER):
        leftover.unlink(missing_ok=True)
    sweep(folder)
    (folder / units.FOLDER).mkdir(exist_ok=True)


def _stamps(source: Source) -> list[list[Any]]:
    return [
        [each.name, split, *each.stamp()]
        for split, inputs in (("train", source.train), ("validation", source.validation))
        for each in inputs
    ]


def _describe_inputs(source: Source, known: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Name, split and digest of every input; `known` ones with the same stamp are not read."""
    digests = {(k["name"], *k["stamp"]): k["sha256"] for k in known if "stamp" in k}
    held_out = "train and validation" if source.held_out_fraction is not None else "train"
    return [
        {
            "name": each.name,
            "split": split,
            "sha256": digests.get((each.name, *each.stamp())) or each.sha256(),
        }
        for split, inputs in ((held_out, source.train), ("validation", source.validation))
        for each in inputs
    ]


def is_prepared(folder: Path, request: dict[str, Any], source: Source) -> bool:
    """Whether finished work of this very request is there.

    Raises:
      UserError: it is of another request, or the folder holds what was not prepared here.
    """
    if not (folder / shards.MANIFEST).exists():
        _refuse_foreign(folder)
        return False
    found = Description(shards.read_manifest(folder), str(folder / shards.MANIFEST))
    asked_before = found.section("request")
    known = asked_before.get("inputs", list)
    before, now = (
        {(Path(name).name, split, sha256) for name, split, sha256 in map(_input_key, inputs)}
        for inputs in (known, _describe_inputs(source, known))
    )
    table: dict[str, Any] = {"rows": shards.ROWS[0], **asked_before.table}
    for key, asked in (request | {"inputs": now}).items():
        if key == "tokenizer_sample" and key not in asked_before:
            continue  # it was the whole text
        # The same text is the same source, whatever path leads to it.
        of_text = key in ("source", "validation", "inputs")
        if table.get(key) == asked or (of_text and before == now):
            continue
        if key == "inputs":
            difference = f"another content of {min(name for name, *_ in before ^ now)}"
        else:
            difference = f"{key}={table.get(key)}, not {key}={asked}"
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


def tidy(folder: Path) -> None:
    """Removes what a finished preparation leaves: entries of units, shards that nothing names."""
    named = {
        shard["file"]
        for stream in shards.read_manifest(folder)["streams"].values()
        for shard in stream["shards"]
    }
    for path in [
        *_entries(folder),
        *(p for p in shards.shard_files(folder) if p.name not in named),
    ]:
        path.unlink(missing_ok=True)
    sweep(folder)
    with contextlib.suppress(FileNotFoundError):
        (folder / units.FOLDER).rmdir()
    (folder / BEGUN).unlink(missing_ok=True)


def _entries(folder: Path) -> list[Path]:
    return list((folder / units.FOLDER).glob("*.json"))
