"""Tokens per second that the data pipeline delivers, beside a bare NumPy gather.

    python -m tests.benchmarks.data_pipeline [--data=FOLDER]

The baseline draws windows with replacement and copies them: no order, no epochs, no resume and no
thread. Each ratio is of two numbers measured in turn in this process. Without --data the bundled
novels are prepared first, with 512 tokens, into a temporary folder.

On two CPU cores (AMD EPYC):

    T=   64 B=  8  train   13.2 M tokens/s   gather    57.1 M tokens/s   ratio  0.23
    T=  128 B= 16  train   21.9 M tokens/s   gather   220.4 M tokens/s   ratio  0.10
    T=  256 B=  8  train   33.1 M tokens/s   gather   232.4 M tokens/s   ratio  0.14
    T= 1024 B= 32  train   48.1 M tokens/s   gather  2196.5 M tokens/s   ratio  0.02

Computing the shuffled order takes about 40 times as long as reading the windows.
"""

import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
from absl import flags

from looped_jax import cli
from looped_jax.data.pipeline import TokenData, train_batches, validation_batches
from looped_jax.data.prepare import prepare

SHAPES = ((64, 8), (128, 16), (256, 8), (1024, 32))
SECONDS = 0.5
REPEATS = 5


def gathered(data: TokenData, T: int, B: int) -> Iterator[np.ndarray]:
    """The baseline: random windows of a memory-mapped array."""
    tokens = np.load(data.folder / "train-00000.npy", mmap_mode="r")
    windows = np.lib.stride_tricks.sliding_window_view(tokens, T + 1)
    generator = np.random.default_rng(0)
    n_windows = (len(tokens) - 1) // T
    while True:
        yield windows[generator.integers(n_windows, size=B) * T].astype(np.int32)


def rate(step: Callable[[], object], tokens: int) -> float:
    """Tokens per second of a step, over SECONDS."""
    start, n = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < SECONDS:
        step()
        n += 1
    return n * tokens / seconds


def measure(data: TokenData, T: int, B: int) -> None:
    """Prints one shape: best of REPEATS of each, taken in turn."""
    baseline = gathered(data, T, B)
    start = time.perf_counter()
    batches = train_batches(data, sequence_length=T, batch_size=B, seed=0, start_step=0)
    next(batches)
    first = time.perf_counter() - start
    ours, theirs = 0.0, 0.0
    for _ in range(REPEATS):
        ours = max(ours, rate(lambda: next(batches), T * B))
        theirs = max(theirs, rate(lambda: next(baseline), T * B))
    batches.close()
    print(
        f"T={T:5d} B={B:3d}  train {ours / 1e6:6.1f} M tokens/s   gather {theirs / 1e6:7.1f} "
        f"M tokens/s   ratio {ours / theirs:5.2f}   first batch after {first * 1e3:4.0f} ms"
    )


def measure_validation(data: TokenData, T: int, B: int) -> None:
    """Prints one pass over the validation split."""
    start = time.perf_counter()
    for _ in validation_batches(data, sequence_length=T, batch_size=B):
        pass
    seconds = time.perf_counter() - start
    print(f"T={T:5d} B={B:3d}  validation {len(data.validation) / seconds / 1e6:6.1f} M tokens/s")


def main(_: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = flags.FLAGS.data
        data = TokenData.open(given) if given else prepare("bundled", folder, vocab_size=512)
        for T, B in SHAPES:
            measure(data, T, B)
        for T, B in SHAPES:
            measure_validation(data, T, B)


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "Prepared data; the bundled novels if not given.")
    cli.run(main)
