"""Scoring all windows of the held-out text once, in one way: its loss, loops and seconds."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Looks, Rule
from looped_jax.adaptive.scoring import Scored, scorer
from looped_jax.evaluation.scored.windows import run_batches
from looped_jax.evaluation.trained import Trained
from looped_jax.model.config import ModelConfig
from looped_jax.training.validation import window_scorer

# (params, tokens (B, T + 1), mask) -> sums of a window's nats, targets and loops, (B,) each.
Program = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Pass:
    """What came of it; W windows.

    Attributes:
      nats_W, tokens_W: sum over the targets of each window, and their number.
      loops: of a token in the mean, targets or not.
      seconds: what the compiled programs took.
      positions: tokens that were run, targets or not.
    """

    nats_W: np.ndarray
    tokens_W: np.ndarray
    loops: float
    seconds: float
    positions: int

    @property
    def loss(self) -> float:
        """Nats per target."""
        return float(self.nats_W.sum() / self.tokens_W.sum())


@functools.lru_cache(maxsize=32)
def exit_scorer(
    model: ModelConfig, looks: Looks, chunk: int, mesh: Mesh, *, together: bool = False
) -> Callable[..., tuple[Scored, Any]]:
    """The compiled (params, tokens (B, T + 1), mask, forced (B, T), Exits) -> (Scored, mask).

    `adaptive.scoring.scorer` on windows of the held-out text; `forced` are loops to exit after
    whatever the signal says, 0 as it says. What comes back is whole on every process.
    """
    program = scorer(model, looks, chunk, together=together)

    def score(params, tokens_BT, mask_BT, forced_BT, exits):
        B, T = mask_BT.shape
        length_B = jnp.full(B, T, jnp.int32)
        keys_B = jax.vmap(jax.random.key)(jnp.arange(B, dtype=jnp.uint32))
        return program(params, tokens_BT, length_B, keys_B, exits, forced_BT), mask_BT

    return jax.jit(score, out_shardings=parallel.replicated(mesh))


def with_rule(trained: Trained, rule: Rule, fitted: Any, recurrences: int) -> Program:
    """Every token exits by the rule, at loop `recurrences` at the latest."""
    run = trained.run
    B, T = run.evaluation.batch_size, run.data.sequence_length
    share = None if rule.share is None else jnp.float32(rule.share)
    exits = Exits(jnp.float32(rule.threshold), jnp.int32(recurrences), fitted, share)
    together = rule.share is not None
    program = exit_scorer(run.model, rule.looks, run.loss.chunk, trained.mesh, together=together)
    forced_BT = np.zeros((B, T), np.int32)

    def score(params, tokens_BT, mask_BT):
        scored, _ = program(params, tokens_BT, mask_BT, forced_BT, exits)
        nats_B = jnp.sum(jnp.where(mask_BT, scored.nats, 0.0), axis=1)
        return nats_B, jnp.sum(mask_BT, axis=1), jnp.sum(scored.loops, axis=1)

    return score


def at_depth(trained: Trained, depth: int) -> Program:
    """Every token runs the same number of loops, by the model's own program."""
    run = trained.run
    B, T = run.evaluation.batch_size, run.data.sequence_length
    plain = window_scorer(run.model, run.loss.chunk, trained.mesh)

    def score(params, tokens_BT, mask_BT):
        n_bytes_BT = mask_BT.astype(jnp.int32)  # not looked at
        nats_B, tokens_B, _ = plain(params, tokens_BT, mask_BT, n_bytes_BT, np.int32(depth))
        return nats_B, tokens_B, jnp.full(B, depth * T)

    return score


def run_pass(trained: Trained, program: Program, name: str, windows: range | None = None) -> Pass:
    """Scores the windows (None for all that suites score); compiling is not in the seconds."""
    seconds, compiled = 0.0, False

    def timed(*arguments: Any) -> Any:
        nonlocal seconds, compiled
        if not compiled:
            jax.block_until_ready(program(*arguments))
            compiled = True
        start = time.perf_counter()
        result = jax.block_until_ready(program(*arguments))
        seconds += time.perf_counter() - start
        return result

    parts = []
    for first, sums in run_batches(trained, timed, name, windows=windows):
        before = max(0, windows.start - first) if windows else 0
        parts.append([each_B[before:] for each_B in sums])
    nats_W, tokens_W, loops_W = (np.concatenate(each) for each in zip(*parts, strict=True))
    there_W = tokens_W > 0
    T = trained.run.data.sequence_length
    return Pass(
        nats_W[there_W].astype(np.float64),
        tokens_W[there_W].astype(np.float64),
        float(loops_W[there_W].mean() / T),
        seconds,
        int(there_W.sum()) * T,
    )


def difference(one: Pass, other: Pass) -> tuple[float, float]:
    """Difference of the losses in nats, paired by window, and its standard error."""
    difference_W, tokens_W = one.nats_W - other.nats_W, one.tokens_W
    mean, windows = difference_W.sum() / tokens_W.sum(), len(tokens_W)
    spread = np.sum(np.square(difference_W - mean * tokens_W)) * windows / max(windows - 1, 1)
    return float(mean), float(np.sqrt(spread) / tokens_W.sum())
