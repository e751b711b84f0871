"""Measured speed of a model at every depth, in tokens per second."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.evaluation.scored.windows import count_windows, run_batches
from looped_jax.evaluation.trained import Trained
from looped_jax.model.accounting import forward_flops_per_token
from looped_jax.training.validation import window_scorer

WARM_UPS = 2
REPEATS = 7


def throughput(trained: Trained, depths: Sequence[int]) -> dict[str, Any]:
    """Tokens per second of the forward pass with its loss, median and quartiles at every depth.

    One program with a traced depth serves them all, so that depths differ in nothing but loops.
    Rounds over all depths alternate, so that a machine that slows down slows all of them.
    """
    run = trained.run
    B, T = run.evaluation.batch_size, run.data.sequence_length
    scorer = window_scorer(run.model, run.loss.chunk, trained.mesh)
    rounds = WARM_UPS + REPEATS

    def measure(params: Any, tokens_BT: jax.Array, mask_BT: jax.Array) -> np.ndarray:
        bytes_BT = mask_BT.astype(jnp.int32)
        forward = lambda depth: jax.block_until_ready(
            scorer(params, tokens_BT, mask_BT, bytes_BT, np.int32(depth))
        )
        with trained.display.track(f"{run.name} throughput", rounds, unit="rounds") as progress:
            return timed(forward, depths, progress.update)

    windows = range(min(B, count_windows(trained)))
    ((_, seconds_SD),) = run_batches(trained, measure, "", windows=windows)
    rate_SD = B * T / seconds_SD
    low, median, high = np.quantile(rate_SD, (0.25, 0.5, 0.75), axis=0)
    devices = trained.mesh.devices
    return {
        "batch": B,
        "length": T,
        "warm_ups": WARM_UPS,
        "repeats": REPEATS,
        "device": f"{devices.size} x {devices.flat[0].device_kind}",
        "depths": list(depths),
        "tokens_per_second": median.tolist(),
        "quartiles": [low.tolist(), high.tolist()],
        "flops_per_token": [forward_flops_per_token(run.model, T, depth) for depth in depths],
    }


def timed(
    forward: Callable[[int], Any],
    depths: Sequence[int],
    on_round: Callable[[int], None],
    clock: Callable[[], float] = time.perf_counter,
) -> np.ndarray:
    """Seconds of each of REPEATS calls at every depth, (repeats, depths); warm-ups do not count."""
    seconds = np.zeros((WARM_UPS + REPEATS, len(depths)))
    for i in range(len(seconds)):
        for j, depth in enumerate(depths):
            began = clock()
            forward(depth)
            seconds[i, j] = clock() - began
        on_round(i + 1)
    return seconds[WARM_UPS:]
