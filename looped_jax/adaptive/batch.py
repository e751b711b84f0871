"""Scoring of given texts, for scripts that analyse what a model makes of them.

from looped_jax import adaptive, generate

run = generate.load("runs/one")
for text in adaptive.score(run, ["It was a dark night.", "Call me"], exit="change:0.02"):
    print(text.nats.sum(), text.loops)
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.adaptive import memory
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Rule, check_model
from looped_jax.adaptive.scoring import scorer
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError
from looped_jax.model.config import ModelConfig

# Texts are padded to powers of two from here on, so that few shapes are compiled.
SMALLEST_LENGTH = 16
CHUNK = 4096  # most tokens whose logits exist at one time
# Full depth as a rule: a distance is never negative.
NEVER = Rule("change", -1.0)


class Run(Protocol):
    """A trained model, as `looped_jax.generate.load` gives it."""

    model: ModelConfig
    params: Any
    tokenizer: Tokenizer


@dataclasses.dataclass(frozen=True)
class ScoredText:
    """What a model makes of one text of N tokens; the first follows an end-of-text token.

    Attributes:
      tokens: ids, (N,).
      nats: cross-entropy of each, (N,).
      loops: depth at which each was predicted, (N,).
    """

    tokens: np.ndarray
    nats: np.ndarray
    loops: np.ndarray


def score(
    run: Run,
    texts: Sequence[str],
    exit: Rule | str | None = None,
    *,
    fitted: Any = None,
    batch_size: int = 16,
) -> list[ScoredText]:
    """Loss and loops of every token of every text, in their order.

    Args:
      run: what `looped_jax.generate.load(workdir)` returns.
      exit: a rule or its text; None for full depth. Without `most`, tokens loop up to the largest
        depth that training may have drawn, `model.max_recurrences`.
      fitted: what the signal was fitted with, as `calibration.rule_of` returns it.
      batch_size: texts that are run together; no result depends on it.

    Raises:
      UserError: a rule or model that is not allowed, or a text that is longer than the context.
    """
    model, rule = run.model, Rule.parse(exit) if isinstance(exit, str) else exit or NEVER
    check_model(model)
    if SIGNALS[rule.signal].is_fitted and fitted is None:
        raise UserError(
            f"exit {str(rule)!r} without what its signal was fitted with; allowed: both as "
            "looped_jax.adaptive.calibration.rule_of returns them"
        )
    ids = [_encode(run, text) for text in texts]
    # The traced numbers of the rule.
    share = None if rule.share is None else jnp.float32(rule.share)
    most = jnp.int32(rule.most or model.max_recurrences)
    exits = Exits(jnp.float32(rule.threshold), most, fitted, share)
    program = scorer(model, rule.looks, CHUNK, together=rule.share is not None)
    found: dict[int, ScoredText] = {}
    for rows, tokens_BT in batches(ids, batch_size, model.max_length):
        memory.describe(model, rule, batch_size, tokens_BT.shape[1] - 1, CHUNK)
        length_B = np.zeros(batch_size, np.int32)
        length_B[: len(rows)] = [len(ids[row]) - 1 for row in rows]
        # A start from noise is a text's own, wherever it stands.
        keys_B = jax.vmap(jax.random.key)(np.resize(np.array(rows, np.uint32), batch_size))
        scored = jax.device_get(program(run.params, tokens_BT, length_B, keys_B, exits))
        for place, row in enumerate(rows):
            N = len(ids[row]) - 1
            found[row] = ScoredText(ids[row][1:], scored.nats[place, :N], scored.loops[place, :N])
    return [found[row] for row in range(len(texts))]


def _encode(run: Run, text: str) -> np.ndarray:
    """An end-of-text token and the ids of the text."""
    ids = np.concatenate([[run.tokenizer.end_of_text_id], run.tokenizer.encode(text)])
    start = text if len(text) <= 20 else f"{text[:20]}…"
    if not 2 <= len(ids) <= run.model.max_length + 1:
        raise UserError(
            f"text {start!r} has {len(ids) - 1} tokens; allowed: 1 to model.max_length = "
            f"{run.model.max_length}"
        )
    return ids.astype(np.int32)


def batches(
    ids: list[np.ndarray], batch_size: int, context: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Rows of similar length with their tokens (B, T + 1), short ones first, padded with zeros."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        length = SMALLEST_LENGTH
        while length < len(ids[rows[-1]]) - 1:
            length *= 2
        tokens_BT = np.zeros((batch_size, min(length, context) + 1), np.int32)
        for place, row in enumerate(rows):
            tokens_BT[place, : len(ids[row])] = ids[row]
        yield rows, tokens_BT
