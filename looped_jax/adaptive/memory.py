"""What is free, and what scoring with exits takes, known before anything runs."""

import jax
import jax.numpy as jnp
import psutil

from looped_jax.adaptive.loop import ROW_SLACK
from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.scoring import STAGES
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.errors import UserError
from looped_jax.model.config import ModelConfig

MOST_OF_FREE_FOR_SIGNAL = 0.25


def free_bytes() -> int:
    """Memory that the first device has free; a CPU's is what the system says is available."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"] - statistics["bytes_in_use"]
    return psutil.virtual_memory().available


def signal_bytes(model: ModelConfig, rule: Rule, tokens: int) -> int:
    """What the rule's signal remembers of so many tokens."""
    init = SIGNALS[rule.signal].init
    remembered = jax.eval_shape(
        lambda fitted, tokens, state: init(fitted, tokens, state, model.vocab_size),
        jax.ShapeDtypeStruct((model.vocab_size,), jnp.float32),
        jax.ShapeDtypeStruct((tokens,), jnp.int32),
        jax.ShapeDtypeStruct((tokens, model.width), jnp.float32),
    )
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(remembered))


def describe(model: ModelConfig, rule: Rule, batch: int, length: int, chunk: int) -> str:
    """One line on the memory of scoring a batch of texts of `length` tokens.

    Raises:
      UserError: the signal would remember more than a quarter of what is free.
    """
    tokens, item = batch * length, jnp.dtype(model.compute_dtype).itemsize
    entries = 2 * tokens * model.core_layers * model.attention_width * item
    scores = 4 * tokens * model.heads * min(length, ROW_SLACK * STAGES[0] * length)
    states = 3 * tokens * model.width * item * (1 + STAGES[0])
    signal = signal_bytes(model, rule, tokens)
    logits = 4 * min(chunk, tokens) * model.vocab_size
    free = free_bytes()
    if signal > MOST_OF_FREE_FOR_SIGNAL * free:
        raise UserError(
            f"exit {rule.signal!r} remembers {_mebibytes(signal)} of {batch} x {length} tokens; "
            f"allowed: a quarter of the {_mebibytes(free)} that are free: a smaller batch, or an "
            "exit that looks at the state"
        )
    return (
        f"exit {rule}: {batch} x {length} tokens at once: keys and values of a loop "
        f"{_mebibytes(entries)}, attention {_mebibytes(scores)}, states {_mebibytes(states)}, "
        f"signal {_mebibytes(signal)}, logits {_mebibytes(logits)}; free {_mebibytes(free)}"
    )


def _mebibytes(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:.3g} MiB"
