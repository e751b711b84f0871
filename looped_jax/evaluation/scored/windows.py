"""The held-out text that suites score: windows through a model, and what each token is."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from rich.console import Console

from looped_jax import parallel
from looped_jax.data.pipeline import validation_batches
from looped_jax.data.shards import TokenData
from looped_jax.evaluation.trained import Trained
from looped_jax.progress import Display

# So many training tokens are counted for the frequencies of tokens.
COUNTED_TOKENS = 1 << 24


@dataclasses.dataclass(frozen=True)
class ScoredText:
    """The N predictions that were scored, in the order of the text; each field is (N,).

    Attributes:
      window: number of the window of T targets that a prediction was made in.
      position: tokens of the window before the input token.
      document: number of the document that the target lies in.
      token, target: ids of the input token and of the one it predicts.
    """

    window: np.ndarray
    position: np.ndarray
    document: np.ndarray
    token: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, keep: np.ndarray | slice) -> "ScoredText":
        return ScoredText(**{f.name: getattr(self, f.name)[keep] for f in dataclasses.fields(self)})


def count_windows(trained: Trained) -> int:
    """Windows of the held-out text that suites score."""
    T = trained.run.data.sequence_length
    windows = -(-(len(trained.data.validation) - 1) // T)
    return min(windows, trained.max_windows) if trained.max_windows else windows


def run_batches(
    trained: Trained,
    scorer: Callable[..., Any],
    name: str,
    *arguments: Any,
    windows: range | None = None,
    given_WT: np.ndarray | None = None,
) -> Iterator[tuple[int, Any]]:
    """`scorer(params, tokens (B, T + 1), mask (B, T), *arguments)` on batches of held-out windows.

    Args:
      scorer: returns what is whole on every process.
      name: what the display calls it; "" shows nothing.
      windows: consecutive windows that count; None for all that suites score. The first batch may
        hold some that lie before.
      given_WT: a number for every token of every window up to the last, from window 0 on; the
        scorer gets those of its batch (B, T) between the mask and the arguments.

    Yields:
      (number of the batch's first window, what the scorer returned, on the host).
    """
    run, B = trained.run, trained.run.evaluation.batch_size
    windows = windows or range(count_windows(trained))
    rows = parallel.local_rows(trained.mesh, B)
    batches = validation_batches(
        trained.data,
        sequence_length=run.data.sequence_length,
        batch_size=B,
        max_windows=windows.stop,
        rows=rows,
    )
    display = trained.display if name else Display(Console(quiet=True))
    with display.track(f"{run.name} {name}", len(windows), unit="windows") as progress:
        for first, batch in zip(range(0, windows.stop, B), batches, strict=True):
            if first + B <= windows.start:
                continue
            if given_WT is not None:
                batch = batch | {"given": _rows(given_WT, first + np.asarray(rows))}
            on_device = parallel.global_batch(batch, trained.mesh)
            of_batch = [
                on_device[name] for name in ("tokens", "mask", "given") if name in on_device
            ]
            scored = scorer(trained.params, *of_batch, *arguments)
            yield first, jax.device_get(scored)
            progress.update(min(first + B, windows.stop) - windows.start)


def score(
    trained: Trained,
    scorer: Callable[..., Any],
    name: str,
    *arguments: Any,
    windows: range | None = None,
    given_WT: np.ndarray | None = None,
) -> tuple[Any, ScoredText]:
    """Runs a scorer as `run_batches` does and gathers what it says of each token.

    Args:
      scorer: returns (tree, mask (B, T)); leaves end in (…, B, T).

    Returns:
      The tree with leaves (…, N), and the text.
    """
    B, T = trained.run.evaluation.batch_size, trained.run.data.sequence_length
    start = windows.start if windows else 0
    leaves, targets, structure = [], [], None
    batches = run_batches(trained, scorer, name, *arguments, windows=windows, given_WT=given_WT)
    for first, (tree, mask_BT) in batches:
        index_BT = (first + np.arange(B))[:, None] * T + np.arange(1, T + 1)
        keep_BT = mask_BT & (index_BT > start * T)
        flat, structure = jax.tree.flatten(tree)
        leaves.append([leaf[..., keep_BT] for leaf in flat])
        targets.append(index_BT[keep_BT])
    assert structure is not None
    joined = [np.concatenate(parts, axis=-1) for parts in zip(*leaves, strict=True)]
    text = scored_text(trained.data, T, np.concatenate(targets))
    return jax.tree.unflatten(structure, joined), text


def _rows(given_WT: np.ndarray, windows_B: np.ndarray) -> np.ndarray:
    """The rows of these windows; zeros beyond the last."""
    rows_BT = given_WT[np.minimum(windows_B, len(given_WT) - 1)]
    return np.where((windows_B < len(given_WT))[:, None], rows_BT, 0)


def scored_text(data: TokenData, T: int, targets_N: np.ndarray) -> ScoredText:
    """What the predictions are whose targets stand at these places of the held-out text."""
    stream = data.validation.read(0, int(targets_N[-1]) + 1)
    ends = np.cumsum(stream == data.end_of_text_id)
    inputs_N = targets_N - 1
    return ScoredText(
        window=inputs_N // T,
        position=inputs_N % T,
        document=ends[inputs_N],
        token=stream[inputs_N],
        target=stream[targets_N],
    )


def training_counts(data: TokenData) -> np.ndarray:
    """How often each token id occurs in the training text (in its first 2²⁴ tokens), (V,).

    Raises:
      UserError: the training text is missing, or not the one that was prepared.
    """
    training = TokenData.open(data.folder, ("train",))
    training.verify_beginning("train", COUNTED_TOKENS)
    return np.bincount(training.train.read(0, COUNTED_TOKENS), minlength=data.vocab_size)
