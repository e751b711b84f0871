"""Scoring text with every token at a depth of its own: one compiled program that saves the time."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.loop import BEYOND, Loop, Running
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array

# Parts of all tokens that packed stages have room for.
STAGES = (0.7, 0.45, 0.2, 0.07)


class Scored(NamedTuple):
    """What became of each token of (B, T): exit loop (0 beyond a row's text), loss, best token.

    Attributes:
      loops: int32.
      nats: cross-entropy of the target, float32.
      argmax: the most likely token, int32.
    """

    loops: Any
    nats: Any
    argmax: Any


@functools.lru_cache(maxsize=32)
def scorer(
    model: ModelConfig,
    looks: Looks,
    chunk: int,
    stages: tuple[float, ...] = STAGES,
    *,
    together: bool = False,
) -> Callable[..., Scored]:
    """The compiled (params, tokens (B, T + 1), length (B,), keys (B,), Exits, forced) -> Scored.

    Compiled once for each (B, T), whatever the threshold and the deepest loop. `length` is the
    number of each row's targets, `keys` are for a start from noise, `forced` int32 (B, T) are loops
    to exit after whatever the signal says (0: as it says), or None.

    Args:
      chunk: most tokens whose logits exist at one time.
      stages: parts of all tokens that packed stages have room for, falling.
      together: all tokens exit together, when the share `Exits.share` of them have settled.
    """

    def score(params, tokens_BT, length_B, keys_B, exits: Exits, forced_BT=None):
        frozen = FrozenModel(model, params)
        inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
        T = inputs_BT.shape[1]
        input_BTD = frozen.prelude(frozen.embed(inputs_BT))
        start = frozen.initial_state(input_BTD, keys_B=keys_B)
        memory = SIGNALS[looks.signal].init(exits.fitted, inputs_BT, start, model.vocab_size)
        is_text_BT = jnp.arange(T)[None] < length_B[:, None]
        exit_BT = jnp.where(is_text_BT, 0, BEYOND).astype(jnp.int32)
        running = Running(jnp.int32(0), start, exit_BT, memory)
        loop = Loop(frozen, looks, exits)
        if together:
            ended = loop.run_together(running, input_BTD)
        else:
            ended, _ = loop.run(running, input_BTD, stages, forced_BT)
        nats_BT, argmax_BT = _outputs(frozen, frozen.coda(ended.state), targets_BT, chunk)
        return Scored(jnp.maximum(ended.exit, 0), nats_BT, argmax_BT)

    return jax.jit(score)


def _outputs(
    frozen: FrozenModel, h_BTD: Array, targets_BT: Array, chunk: int
) -> tuple[Array, Array]:
    """Cross-entropy of the targets in nats, and the most likely token, (B, T).

    A chunk holds every n-th token, so that tokens which lie spread over devices stay there.
    """
    B, T, D = h_BTD.shape
    chunks = -(-B * T // chunk)
    size = -(-B * T // chunks)
    missing = size * chunks - B * T
    h_CnD = jnp.pad(h_BTD.reshape(-1, D), ((0, missing), (0, 0))).reshape(size, chunks, D)
    y_Cn = jnp.pad(targets_BT.reshape(-1), (0, missing)).reshape(size, chunks)

    def of_chunk(n: Array) -> tuple[Array, Array]:
        h_CD, y_C = (jax.lax.dynamic_index_in_dim(x, n, 1, keepdims=False) for x in (h_CnD, y_Cn))
        logits_CV = frozen.readout(h_CD[None])[0]
        below_CV = logits_CV - jnp.max(logits_CV, axis=1, keepdims=True)
        target_C = jnp.take_along_axis(below_CV, y_C[:, None], axis=1)[:, 0]
        nats_C = jnp.log(jnp.sum(jnp.exp(below_CV), axis=1)) - target_C
        # The first of the largest as a plain minimum: argmax takes four times as long on CPUs.
        ids_1V = jnp.arange(below_CV.shape[1], dtype=jnp.int32)[None]
        argmax_C = jnp.min(jnp.where(below_CV == 0, ids_1V, ids_1V.size - 1), axis=1)
        return nats_C, argmax_C

    of_chunks = jax.lax.map(of_chunk, jnp.arange(chunks))
    nats_BT, argmax_BT = (x_nC.T.reshape(-1)[: B * T].reshape(B, T) for x_nC in of_chunks)
    return nats_BT, argmax_BT
