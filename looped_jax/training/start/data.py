"""The data of a run: opened, checked against its model, read once against its digests."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from looped_jax import processes
from looped_jax.config import RunConfig
from looped_jax.data.pipeline import count_train_windows
from looped_jax.data.shards import MANIFEST, TokenData, size_of
from looped_jax.errors import UserError
from looped_jax.files import read_json, replacing, sha256_of_json, write_json
from looped_jax.interruption import StopRequest
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder

# Bytes of data from which on reading them takes more than some seconds.
LONG_TO_READ = 2e9
# In a run folder: the files of data that were read once and compared with their digests.
VERIFIED = "data_verified.json"


def open_data(run: RunConfig) -> TokenData:
    """The run's data, checked against its model.

    Raises:
      UserError: no data there, more token ids than the model has, less than one window, or no
        targets by loop where they are supervised.
    """
    data = TokenData.open(run.data.folder)
    check_vocabulary(data, run)
    if run.loss.supervision == "by_loop" and data.loop_targets != run.model.recurrences:
        raise UserError(
            f"{run.data.folder} has targets for {data.loop_targets} loops; allowed with "
            f"loss.supervision 'by_loop': model.recurrences = {run.model.recurrences} of them"
        )
    count_train_windows(data, run.data.sequence_length)
    return data


def check_vocabulary(data: TokenData, run: RunConfig) -> None:
    """Raises UserError if the data has more token ids than the run's model."""
    if data.vocab_size > run.model.vocab_size:
        raise UserError(
            f"model.vocab_size = {run.model.vocab_size}; allowed with the tokenizer of "
            f"{data.folder}: at least {data.vocab_size}"
        )


def verify_once(data: TokenData, folder: RunFolder, display: Display, stop: StopRequest) -> None:
    """Compares the data with its digests, every file in one process and once for the run.

    The run folder remembers which files were read, by size, time of change and inode. Processes
    share the reading where these agree; where each host has a copy of its own, each reads its own.

    Raises:
      UserError: on all processes, for a file that is not what was prepared.
      Interrupted: a signal asked to stop.
    """
    path = folder.path / VERIFIED
    known = processes.on_process_0(lambda: read_json(path) if path.exists() else {})
    stamps = {file: _stamp(file, digest) for file, digest in data.digests.items()}
    todo = [file for file, stamp in stamps.items() if known.get(file.name) != stamp]
    shared = processes.is_same_everywhere(sha256_of_json(list(stamps.values())))
    mine = todo[jax.process_index() :: jax.process_count()] if shared else todo
    start, size = time.monotonic(), size_of(mine)
    processes.everywhere(lambda: verify_data(data, display, stop, mine))
    stop.check(None)
    if size >= LONG_TO_READ:
        display.say(f"verified {size:,} bytes of {data.folder} in {time.monotonic() - start:.0f} s"
                    f" ({len(stamps) - len(todo)} of {len(stamps)} files were before)")  # fmt: skip
    if todo and processes.is_first():
        write_json(path, {file.name: stamp for file, stamp in stamps.items()})


def _stamp(file: Path, digest: str) -> list[Any]:
    """What tells a file that was read from any other; the digest is the one it has to have."""
    if not file.exists():
        return []
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino, digest]


def verify_data(
    data: TokenData, display: Display, stop: StopRequest, paths: Sequence[Path] | None = None
) -> None:
    """Raises UserError for a file that is not what was prepared; progress if it takes long.

    Ends early, and says nothing, once this process was asked to stop.

    Args:
      paths: which files; None for all.
    """
    files = list(data.digests) if paths is None else paths
    total = size_of(files)
    shown = display if total >= LONG_TO_READ else Display(Console(quiet=True))
    with shown.track(f"verifying {data.folder}", total, unit="bytes") as progress:
        for size in data.verified(files):
            progress.update(progress.done + size)
            if stop.signal_number is not None:
                return


def epochs(run: RunConfig, data: TokenData) -> float:
    """How often the run sees its training text."""
    windows = count_train_windows(data, run.data.sequence_length)
    return run.steps * run.data.batch_size / windows


def describe_epochs(run: RunConfig, data: TokenData) -> str:
    """One line: how much text a run sees, and how much of it there is."""
    tokens = run.steps * run.batch_tokens
    return (
        f"{epochs(run, data):.3g} epochs: {tokens:,} tokens of training from {len(data.train):,} "
        f"in {data.folder}"
    )


def keep_with_run(data: TokenData, folder: RunFolder) -> None:
    """Copies tokenizer and manifest into the run folder, which then needs no data to be read."""
    if not folder.tokenizer_path.exists():
        with open(data.tokenizer_path, "rb") as source, replacing(folder.tokenizer_path) as copy:
            shutil.copyfileobj(source, copy)
    if not folder.data_manifest_path.exists():
        write_json(folder.data_manifest_path, read_json(data.folder / MANIFEST))


def check_same_data(digest: str, data: TokenData, folder: RunFolder) -> None:
    """Raises UserError unless `digest` is the data's."""
    if digest != data.digest:
        raise UserError(
            f"data in {data.folder} has digest {data.digest[:12]}; allowed for {folder.path}: "
            f"{digest[:12]}, the data it was started on"
        )
