"""Validation loss on the held-out text, at any depth, with its standard error."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.config import RunConfig
from looped_jax.data.pipeline import validation_batches
from looped_jax.data.shards import TokenData
from looped_jax.files import replacing
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel
from looped_jax.training.losses import token_cross_entropy

WINDOWS = "validation_windows.npy"


@dataclasses.dataclass(frozen=True)
class ValidationLoss:
    """Mean loss over the scored tokens.

    Attributes:
      loss: nats per token.
      standard_error: of that mean, in nats; windows of T tokens are the independent units.
      bits_per_byte: the same total over the bytes of text that the tokens cover.
      tokens: how many were scored.
      windows_W2: nats and tokens of every window, in the order of the held-out text.
    """

    loss: float
    standard_error: float
    bits_per_byte: float
    tokens: int
    windows_W2: np.ndarray

    def write_windows(self, run_folder: Path) -> None:
        """Writes `windows_W2` beside the summary: what two runs are compared by, pair by pair."""
        with replacing(run_folder / WINDOWS) as file:
            np.save(file, self.windows_W2)


def validation_loss(
    model: ModelConfig,
    params: Any,
    data: TokenData,
    mesh: Mesh,
    *,
    sequence_length: int,
    batch_size: int,
    max_windows: int,
    chunk: int,
    recurrences: int,
    after_batch: Callable[[], None] = lambda: None,
) -> ValidationLoss:
    """Scores the held-out text in windows of `sequence_length` targets.

    Args:
      params: parameters, on the mesh (which has to be active).
      batch_size: windows per step over all devices.
      max_windows: only the first so many windows; 0 for all.
      chunk: most tokens whose logits exist at one time.
      recurrences: depth; one compiled step serves them all.
      after_batch: called after each batch; may raise, to stop.
    """
    scorer = window_scorer(model, chunk, mesh)
    nats, tokens, n_bytes = [], [], 0
    batches = validation_batches(
        data,
        sequence_length=sequence_length,
        batch_size=batch_size,
        max_windows=max_windows or None,
        rows=parallel.local_rows(mesh, batch_size),
    )
    for batch in batches:
        on_device = parallel.global_batch(batch, mesh)
        scored = scorer(
            params, on_device["tokens"], on_device["mask"], on_device["bytes"],
            np.int32(recurrences),
        )  # fmt: skip
        window_nats, window_tokens, batch_bytes = jax.device_get(scored)
        nats.append(window_nats)
        tokens.append(window_tokens)
        n_bytes += int(batch_bytes)
        after_batch()
    return _summarise(np.concatenate(nats), np.concatenate(tokens), n_bytes)


def validation_loss_of_run(
    run: RunConfig,
    params: Any,
    data: TokenData,
    mesh: Mesh,
    after_batch: Callable[[], None] = lambda: None,
) -> ValidationLoss:
    """The loss that a run's summary states: its windows, at its depth."""
    return validation_loss(
        run.model, params, data, mesh,
        sequence_length=run.data.sequence_length,
        batch_size=parallel.filled_up(mesh, run.evaluation.batch_size),
        max_windows=run.evaluation.max_windows,
        chunk=run.loss.chunk,
        recurrences=run.model.recurrences,
        after_batch=after_batch,
    )  # fmt: skip


@functools.lru_cache(maxsize=8)
def window_scorer(model: ModelConfig, chunk: int, mesh: Mesh) -> Callable[..., Any]:
    """(params, tokens, mask, bytes, r) -> (nats per window (B,), tokens per window (B,), bytes)."""

    def score(params, tokens_BT, mask_BT, bytes_BT, recurrences):
        frozen = FrozenModel(model, params)
        inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
        h_BTD = frozen.readout_input(frozen.hidden(inputs_BT, recurrences))
        nats_N = token_cross_entropy(
            h_BTD.reshape(-1, model.width), frozen.head_kernel(), targets_BT.reshape(-1),
            softcap=model.softcap or None, chunk=chunk,
        )  # fmt: skip
        nats_BT = jnp.where(mask_BT, nats_N.reshape(mask_BT.shape), 0.0)
        return jnp.sum(nats_BT, 1), jnp.sum(mask_BT, 1), jnp.sum(bytes_BT)

    return jax.jit(score, out_shardings=parallel.replicated(mesh))


def _summarise(nats_W: np.ndarray, tokens_W: np.ndarray, n_bytes: int) -> ValidationLoss:
    """The mean over tokens, with the standard error of a ratio of sums over windows."""
    filled = tokens_W > 0
    nats_W, tokens_W = nats_W[filled].astype(np.float64), tokens_W[filled].astype(np.float64)
    total, windows = tokens_W.sum(), len(tokens_W)
    mean = nats_W.sum() / total
    spread = np.sum(np.square(nats_W - mean * tokens_W)) * windows / max(windows - 1, 1)
    return ValidationLoss(
        loss=float(mean),
        standard_error=float(np.sqrt(spread) / total),
        bits_per_byte=float(nats_W.sum() / (math.log(2) * n_bytes)),
        tokens=int(total),
        windows_W2=np.stack([nats_W, tokens_W], axis=1),
    )
