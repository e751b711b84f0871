"""The data of a run: opened, checked against its model, read once against its digests."""

import shutil

from rich.console import Console

from looped_jax.config import RunConfig
from looped_jax.data.pipeline import count_train_windows
from looped_jax.data.shards import MANIFEST, TokenData
from looped_jax.errors import UserError
from looped_jax.files import read_json, replacing, write_json
from looped_jax.interruption import StopRequest
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder

# Bytes of data from which on reading them takes more than some seconds.
LONG_TO_READ = 2e9


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


def verify_data(data: TokenData, display: Display, stop: StopRequest) -> None:
    """Raises UserError for a file that is not what was prepared; progress if it takes long.

    Ends early, and says nothing, once this process was asked to stop.
    """
    shown = display if data.size >= LONG_TO_READ else Display(Console(quiet=True))
    with shown.track(f"verifying {data.folder}", data.size, unit="bytes") as progress:
        for size in data.verified():
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
