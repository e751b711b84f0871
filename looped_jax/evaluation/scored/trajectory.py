"""What every loop of a frozen model does to every token, streamed over loops and tokens.

States are kept for every loop, logits never: coda and head run loop by loop, and the logits of a
few tokens at a time exist for three loops (the one before, this one, the last).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.adaptive.signals import divergence
from looped_jax.evaluation.scored.radial import expand
from looped_jax.evaluation.scored.radial import norm as state_norm
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array


class Loops(NamedTuple):
    """Rows are loops i = 1 … R, then the batch: (R, B, T). Loops count from 1, h_0 is the start.

    Attributes:
      nats: cross-entropy of the target if loop i were the last.
      kl: KL(p_i ‖ p_{i−1}) in nats; infinite at i = 1, which has no output before it.
      kl_to_last: KL(p_R ‖ p_i) in nats.
      entropy: of p_i, nats.
      argmax: the most likely token, int32.
      change: ‖h_i − h_{i−1}‖ / ‖h_i‖.
      angle: between h_i and h_{i−1}, radians; infinite where h_{i−1} is zero.
      second_order: ‖(h_i − h_{i−1}) − (h_{i−1} − h_{i−2})‖ / ‖h_i‖; infinite at i = 1.
    """

    nats: Any
    kl: Any
    kl_to_last: Any
    entropy: Any
    argmax: Any
    change: Any
    angle: Any
    second_order: Any


@functools.lru_cache(maxsize=8)
def loop_scorer(model: ModelConfig, recurrences: int, chunk: int, mesh: Mesh) -> Callable[..., Any]:
    """The compiled measurement (params, tokens (B, T + 1), mask) -> (Loops, mask).

    What comes back is whole on every process.

    Args:
      recurrences: R, loops that are run.
      chunk: most tokens whose logits exist at one time (three times).
    """

    def score(params, tokens_BT, mask_BT):
        h_RBTD, motion = unroll(model, params, tokens_BT[:, :-1], recurrences)
        outputs = distributions(model, params, h_RBTD, tokens_BT[:, 1:], chunk)
        return Loops(**outputs, **motion), mask_BT

    return jax.jit(score, out_shardings=parallel.replicated(mesh))


@functools.lru_cache(maxsize=8)
def depth_scorer(
    model: ModelConfig, depths: tuple[int, ...], chunk: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask) -> nats (depths, B, T), mask.

    `depths` are loops, each counted as the last; the deepest decides how many are run.
    """

    def score(params, tokens_BT, mask_BT):
        h_RBTD, _ = unroll(model, params, tokens_BT[:, :-1], max(depths))
        chosen = h_RBTD[jnp.asarray(depths) - 1]
        nats = lambda logits_CV, y_C: _nats(jax.nn.log_softmax(logits_CV), y_C)
        nats_RBT = each_token(model, params, chosen, tokens_BT[:, 1:], chunk, nats)
        return nats_RBT, mask_BT

    return jax.jit(score, out_shardings=parallel.replicated(mesh))


def unroll(
    model: ModelConfig,
    params: Any,
    tokens_BT: Array,
    recurrences: int,
    observe: Callable[[Array], dict[str, Array]] = lambda state: {},
) -> tuple[Array, dict[str, Array]]:
    """The coda's output after every loop (R, B, T, D), and how the state moved, each (R, B, T).

    What `observe` finds in the state after a loop is stacked likewise.
    """
    frozen = FrozenModel(model, params)
    input_BTD = frozen.prelude(frozen.embed(tokens_BT))

    def loop(carry, index):
        state, change = carry
        new = frozen.recur(state, input_BTD, index)
        new_change, motion = moved(state, new, change)
        motion["second_order"] = jnp.where(index == 0, jnp.inf, motion["second_order"])
        return (new, new_change), (frozen.coda(new), motion | observe(new))

    start = frozen.initial_state(input_BTD)
    carry = (start, jnp.zeros(start.shape, jnp.float32))
    return jax.lax.scan(loop, carry, jnp.arange(recurrences, dtype=jnp.int32))[1]


def moved(old: Array, new: Array, change: Array) -> tuple[Array, dict[str, Array]]:
    """new − old in float32, and the sizes of the movement, (B, T), given the one before it."""
    old, new = old.astype(jnp.float32), new.astype(jnp.float32)
    new_change = new - old
    size = state_norm(new)
    length_of_old = state_norm(old)
    unit = lambda x: x / jnp.maximum(expand(state_norm(x), x), 1e-30)
    u, v = unit(old), unit(new)
    # The arc cosine of a float32 product is blind below 3e-4 radians; this is not.
    angle = 2 * jnp.arctan2(state_norm(u - v), state_norm(u + v))
    return new_change, {
        "change": state_norm(new_change) / size,
        "angle": jnp.where(length_of_old > 0, angle, jnp.inf),
        "second_order": state_norm(new_change - change) / size,
    }


def distributions(
    model: ModelConfig, params: Any, h_RBTD: Array, targets_BT: Array, chunk: int
) -> dict[str, Array]:
    """The outputs of every loop against each other and the target; the fields of `Loops`."""

    def of_chunk(logits_of, y_C):
        last_CV = jax.nn.log_softmax(logits_of(-1))

        def loop(before_CV, index):
            log_p_CV = jax.nn.log_softmax(logits_of(index))
            values = {
                "nats": _nats(log_p_CV, y_C),
                "kl": jnp.where(index == 0, jnp.inf, divergence(log_p_CV, before_CV)),
                "kl_to_last": divergence(last_CV, log_p_CV),
                "entropy": -jnp.sum(jnp.exp(log_p_CV) * log_p_CV, -1),
                "argmax": jnp.argmax(log_p_CV, -1).astype(jnp.int32),
            }
            return log_p_CV, values

        loops = jnp.arange(h_RBTD.shape[0])
        return jax.lax.scan(loop, last_CV, loops)[1]

    return over_tokens(model, params, h_RBTD, targets_BT, chunk, of_chunk)


def each_token(
    model: ModelConfig, params: Any, h_RBTD: Array, targets_BT: Array, chunk: int, function
) -> Array:
    """`function(logits (C, V), targets (C,)) -> (C,)` of every loop and token: (R, B, T)."""

    def of_chunk(logits_of, y_C):
        loops = jnp.arange(h_RBTD.shape[0])
        return jax.lax.map(lambda index: function(logits_of(index), y_C), loops)

    return over_tokens(model, params, h_RBTD, targets_BT, chunk, of_chunk)


def over_tokens(
    model: ModelConfig, params: Any, h_RBTD: Array, targets_BT: Array, chunk: int, function
) -> Any:
    """Runs `function(logits_of, targets_C)` over chunks of tokens; leaves (R, C) become (R, B, T).

    `logits_of(i)` are the logits (C, V) of row i of `h_RBTD`. A chunk holds every n-th token, so
    that tokens which lie spread over devices stay there.
    """
    R, B, T, D = h_RBTD.shape
    N = B * T
    chunks = -(-N // chunk)
    size = -(-N // chunks)
    missing = size * chunks - N
    frozen = FrozenModel(model, params)
    h_RND = jnp.pad(h_RBTD.reshape(R, N, D), ((0, 0), (0, missing), (0, 0)))
    h_RCnD = h_RND.reshape(R, size, chunks, D)
    y_Cn = jnp.pad(targets_BT.reshape(N), (0, missing)).reshape(size, chunks)

    def of_chunk(n):
        h_RCD = jax.lax.dynamic_index_in_dim(h_RCnD, n, 2, keepdims=False)
        y_C = jax.lax.dynamic_index_in_dim(y_Cn, n, 1, keepdims=False)
        return function(lambda index: frozen.readout(h_RCD[index][None])[0], y_C)

    of_chunks = jax.lax.map(of_chunk, jnp.arange(chunks))
    to_tokens = lambda x_nRC: jnp.moveaxis(x_nRC, 0, 2).reshape(-1, size * chunks)[:, :N]
    return jax.tree.map(lambda x_nRC: to_tokens(x_nRC).reshape(-1, B, T), of_chunks)


def _nats(log_p_CV: Array, y_C: Array) -> Array:
    return -jnp.take_along_axis(log_p_CV, y_C[:, None], axis=1)[:, 0]
