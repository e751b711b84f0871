"""Token data to batches. The batch of a step is a function of the step and nothing else.

The training text is cut into windows of T + 1 tokens: they overlap by one, so that every token is a
target once, or stand one behind the other where the data is packed. Training visits them in a
random order, a new one each epoch; position is one integer, the step, so a run resumes anywhere and
on any number of processes. Held-out text is scored in windows that overlap, whatever training does.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError

# One element of the grain data set holds whole batches of about this many tokens together:
# grain's cost per element (about 0.1 ms) is then paid once for many small batches.
BLOCK_TOKENS = 1 << 16
PREFETCHED_BLOCKS = 4
LAST_BLOCK = 1 << 40


def train_batches(
    data: TokenData,
    *,
    sequence_length: int,
    batch_size: int,
    seed: int,
    start_step: int,
    rows: np.ndarray | None = None,
) -> "TrainBatches":
    """Endless training batches from `start_step` on, prepared in a background thread.

    Args:
      data: prepared data.
      sequence_length: T, targets a window.
      batch_size: windows a step over all processes.
      seed: chooses the order of the windows, in every epoch.
      start_step: the step whose batch comes first.
      rows: which rows of the global batch this process takes, ascending; None for all. The global
        batch does not depend on who takes what.

    Returns:
      An iterator of {'tokens': int32 (rows, T + 1)}, and for data with targets by loop
      'loop_targets' int32 (rows, T, K): of the last T tokens. `close` ends its thread.

    Raises UserError if the split has less than one window.
    """
    n_windows = count_train_windows(data, sequence_length)
    rows = _checked_rows(batch_size, rows)
    if seed < 0 or start_step < 0:
        raise UserError(f"seed={seed} and start_step={start_step} have to be 0 or more")
    T, K, stride = sequence_length, data.loop_targets, _stride(data, sequence_length)
    steps_a_block = max(1, BLOCK_TOKENS // (len(rows) * (T + 1)))

    def read_block(block: int) -> dict[str, np.ndarray]:
        first = start_step + block * steps_a_block
        steps = np.arange(first, first + steps_a_block)
        positions = (steps[:, None] * batch_size + rows[None, :]).ravel()
        windows = shuffled_windows(positions, n_windows, seed)
        shape = (steps_a_block, len(rows))
        tokens = data.train.windows(windows * stride, T + 1)
        read: dict[str, np.ndarray] = {"tokens": tokens.reshape(*shape, T + 1)}
        if K:
            targets = data.train_targets.windows((windows * stride + 1) * K, T * K)
            read["loop_targets"] = targets.reshape(*shape, T, K)
        return read

    return TrainBatches(grain.MapDataset.range(LAST_BLOCK).map(read_block))


def shuffled_windows(positions: np.ndarray, n_windows: int, seed: int) -> np.ndarray:
    """Windows at these positions of the endless shuffled order: int64, like `positions`.

    Each epoch is a permutation of all windows; (seed, epoch) chooses it.
    """
    windows = np.empty_like(positions)
    epochs = positions // n_windows
    for epoch in np.unique(epochs):
        epoch_seed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
        for i in np.flatnonzero(epochs == epoch):
            windows[i] = grain.experimental.index_shuffle(
                index=int(positions[i] - epoch * n_windows),
                max_index=n_windows - 1,
                seed=epoch_seed,
                rounds=4,
            )
    return windows


class TrainBatches(Iterator[dict[str, np.ndarray]]):
    """Takes batches out of a data set of blocks (steps, B, …), which grain reads ahead."""

    def __init__(self, blocks: grain.MapDataset):
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCHED_BLOCKS)
        self._blocks: Any = iter(blocks.to_iter_dataset(options))
        # Also closes at interpreter exit, where grain's own clean-up comes too late.
        self.close = weakref.finalize(self, self._blocks.close)
        self._block: Iterator[dict[str, np.ndarray]] = iter(())

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            return next(self._block)
        except StopIteration:
            block = next(self._blocks)
            steps = zip(*block.values(), strict=True)
            self._block = (dict(zip(block, step, strict=True)) for step in steps)
            return next(self._block)


def validation_batches(
    data: TokenData,
    *,
    sequence_length: int,
    batch_size: int,
    max_windows: int | None = None,
    rows: np.ndarray | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """The held-out text in order, every token but the first a target exactly once.

    Args:
      data: prepared data.
      sequence_length: T, targets a window.
      batch_size: windows a batch over all processes.
      max_windows: only this many windows from the start; None for all.
      rows: which rows of each batch this process takes, ascending; None for all.

    Returns:
      An iterator, equally long in each process, of
        'tokens' int32 (B, T + 1),
        'mask'   bool  (B, T): whether the target is there; False where rows or the last window
                 are filled up with end-of-text tokens, and for data with targets by loop where the
                 last loop is to say another token than the text,
        'bytes'  int32 (B, T): bytes of text the target covers, 0 under the mask, so that
                 Σ nats · mask / (ln 2 · Σ bytes) is bits per byte.

    Raises UserError if there is no target.
    """
    rows = _checked_rows(batch_size, rows)
    if sequence_length < 1 or (max_windows is not None and max_windows < 1):
        raise UserError(
            f"sequence_length={sequence_length} and max_windows={max_windows} have to be 1 or more"
        )
    n_targets = len(data.validation) - 1
    n_windows = -(-n_targets // sequence_length)
    if max_windows is not None and max_windows < n_windows:
        n_windows, n_targets = max_windows, max_windows * sequence_length
    return _validation_batches(data, sequence_length, batch_size, rows, n_windows, n_targets)


def _validation_batches(
    data: TokenData, T: int, batch_size: int, rows: np.ndarray, n_windows: int, n_targets: int
) -> Iterator[dict[str, np.ndarray]]:
    runs = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > 1) + 1)
    for first in range(0, n_windows, batch_size):
        tokens = np.full((len(rows), T + 1), data.end_of_text_id, np.int32)
        covered = np.zeros((len(rows), T), np.int32)
        mask = (first + rows)[:, None] * T + np.arange(T) < n_targets
        for run in runs:  # of rows that follow each other in the text
            start = (first + int(rows[run[0]])) * T
            if start >= n_targets:
                continue
            length = len(run) * T + 1
            found = data.validation.read(start, min(length, n_targets + 1 - start))
            flat = np.full(length, data.end_of_text_id, np.int32)
            flat[: len(found)] = found
            tokens[run] = np.lib.stride_tricks.sliding_window_view(flat, T + 1)[::T]
            n_bytes = np.zeros(length, np.int32)
            n_bytes[: len(found)] = data.validation_bytes.read(start, len(found))
            covered[run] = n_bytes[1:].reshape(len(run), T)
            if data.loop_targets:
                mask[run] &= _asked(data, start, flat[1:]).reshape(len(run), T)
        yield {"tokens": tokens, "mask": mask, "bytes": covered}


def _asked(data: TokenData, start: int, targets_N: np.ndarray) -> np.ndarray:
    """Which of the targets after position `start` are what the last loop is to say, bool (N,)."""
    K = data.loop_targets
    by_loop = data.validation_targets.read((start + 1) * K, len(targets_N) * K).reshape(-1, K)
    last_N = np.full(len(targets_N), -1)
    last_N[: len(by_loop)] = by_loop[:, -1]
    return last_N == targets_N


def count_train_windows(data: TokenData, sequence_length: int) -> int:
    """Windows in one epoch. Raises UserError if there is not even one."""
    if sequence_length < 1:
        raise UserError(f"sequence_length={sequence_length} has to be 1 or more")
    # The last window needs T + 1 tokens, those before it what the next one does not share.
    n_windows = (len(data.train) - sequence_length - 1) // _stride(data, sequence_length) + 1
    if n_windows < 1:
        raise UserError(
            f"the train split of {data.folder} has {len(data.train)} tokens; "
            f"one window of sequence_length={sequence_length} takes {sequence_length + 1}"
        )
    return n_windows


def _stride(data: TokenData, sequence_length: int) -> int:
    """Tokens from the start of a window to that of the next."""
    return sequence_length + 1 if data.rows == "packed" else sequence_length


def _checked_rows(batch_size: int, rows: np.ndarray | None) -> np.ndarray:
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size} has to be 1 or more")
    return np.arange(batch_size) if rows is None else rows
