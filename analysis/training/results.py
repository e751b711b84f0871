"""Runs as they were trained: config, curves, and the held-out loss window by window.

Reads what a run folder holds (``config.json``, ``metrics.jsonl``, ``summary.json``,
``validation_windows.npy``). Losses are in nats per token.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.errors import InputError
from analysis.tables.estimate import Estimate

#: A curve is averaged over so many parts of its tokens, evenly spaced on a logarithmic axis.
BINS = 100


@dataclass(frozen=True)
class TrainedRun:
    """One run folder, finished or not.

    Attributes:
        config: by dotted key.
        tokens, loss: (S,) of the logged steps. flops_per_token: None before the run has ended.
        summary: None before the run has ended.
        windows_W2: nats and tokens of every held-out window, None where they were not kept.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    tokens: np.ndarray
    loss: np.ndarray
    summary: dict[str, Any] | None
    windows_W2: np.ndarray | None

    @property
    def flops_per_token(self) -> float | None:
        return None if self.summary is None else float(self.summary["flops_per_token"])

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and loss, averaged over at most BINS parts of the logged steps."""
        edges = np.geomspace(self.tokens[0], self.tokens[-1] * (1 + 1e-9), BINS + 1)
        part_S = np.clip(np.searchsorted(edges, self.tokens, side="right") - 1, 0, BINS - 1)
        _, index_S = np.unique(part_S, return_inverse=True)
        count = np.bincount(index_S)
        mean = lambda values_S: np.bincount(index_S, values_S) / count
        return mean(self.tokens), mean(self.loss)


def find_runs(paths: Sequence[Path]) -> list[TrainedRun]:
    """The runs in these folders, at any depth, those of one name by their folder's path.

    Raises:
        InputError: a folder that holds no run, or a run whose files cannot be read.
    """
    folders = [folder for path in paths for folder in _folders(path)]
    runs = [read_run(folder) for folder in dict.fromkeys(folders)]
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else TrainedRun(**vars(run) | {"name": str(run.folder)})
        for run in runs
    ]


def _folders(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    found = False
    for parent, folders, files in os.walk(path):
        folders.sort()
        if "config.json" in files and "metrics.jsonl" in files:
            folders.clear()
            found = True
            yield Path(parent)
    if not found:
        raise InputError(f"{path}: holds no run (a folder with config.json and metrics.jsonl)")


def read_run(folder: Path) -> TrainedRun:
    """One run folder.

    Raises:
        InputError: the file that cannot be read, and why.
    """
    config = dict(_flat(_read(folder / "config.json").get("config", {})))
    summary = None
    if (folder / "summary.json").exists():
        summary = _read(folder / "summary.json")
        if not isinstance(summary.get("flops_per_token"), int | float):
            raise InputError(f"{folder / 'summary.json'}: flops_per_token is not a number")
    tokens_S, loss_S = _metrics(folder / "metrics.jsonl")
    name = summary.get("run") if summary else config.get("name")
    windows = folder / "validation_windows.npy"
    return TrainedRun(
        name=str(name or folder.name),
        folder=folder,
        config=config,
        tokens=tokens_S,
        loss=loss_S,
        summary=summary,
        windows_W2=_windows(windows) if windows.exists() else None,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: unreadable: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object")
    return value


def _metrics(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and loss of the lines that have both; the last may be half-written."""
    points = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: unreadable: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            point = values.get("tokens"), values.get("loss")
            if None not in point:
                points.append([float(x) for x in point])
        except (ValueError, TypeError, AttributeError, RecursionError):
            if number < len(lines):
                raise InputError(f"{path}: line {number} is not a JSON object") from None
    if not points:
        raise InputError(f"{path}: no line has tokens and loss")
    tokens_S, loss_S = np.array(points).T
    return tokens_S, loss_S


def _windows(path: Path) -> np.ndarray:
    try:
        windows_W2 = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: unreadable: {error}") from None
    if windows_W2.ndim != 2 or windows_W2.shape[1] != 2:
        raise InputError(f"{path}: shape {windows_W2.shape}, not (windows, 2)")
    return windows_W2


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else name)
    else:
        yield key, value


def differing_keys(runs: Sequence[TrainedRun]) -> list[str]:
    """Config keys whose values are not the same in all runs, in the order of the first."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    missing = object()
    return [
        key
        for key in keys
        if any(run.config.get(key, missing) != runs[0].config.get(key, missing) for run in runs)
    ]


def paired_difference(first: TrainedRun, other: TrainedRun) -> Estimate | str:
    """Held-out loss of `other` minus that of `first` on the same windows, or why there is none.

    The difference of sums over windows per token, with its normal 95 % interval: what is hard
    about a window is so for both runs and cancels out.
    """
    a_W2, b_W2 = first.windows_W2, other.windows_W2
    if a_W2 is None or b_W2 is None:
        run = first if a_W2 is None else other
        return (
            f"{run.name} has no loss by window: once it is finished, measure it with "
            f"python -m looped_jax.evaluate --workdir={run.folder} --suites=loss"
        )
    texts = {(run.summary or {}).get("data_digest") for run in (first, other)}
    if len(texts) > 1 or a_W2.shape != b_W2.shape or (a_W2[:, 1] != b_W2[:, 1]).any():
        return f"{first.name} and {other.name} were not measured on the same windows"
    tokens_W, difference_W = a_W2[:, 1], b_W2[:, 0] - a_W2[:, 0]
    windows, total = len(tokens_W), tokens_W.sum()
    mean = float(difference_W.sum() / total)
    if windows < 2:
        return f"{first.name} was measured on a single window"
    spread = np.sum((difference_W - mean * tokens_W) ** 2) * windows / (windows - 1)
    return Estimate.normal(mean, float(np.sqrt(spread) / total))
