"""Softmax attention of queries at given positions, and how a caller brings its own.

A call on plain rows, each a text from its start, needs none of this: `causal_attention` it is. Who
runs tokens that stand elsewhere (behind cached ones, or packed without those that have left the
loop) hands the layers a `Context`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.model import kernels

Array = jax.Array

# (layer, q, k, v, memory) -> (mixed, memory): what layer number `layer` of a stack (an int32
# scalar) mixes for its queries. q, k, v and mixed are (B, T, H, d), rotated and normalised; the
# memory goes from layer to layer.
Attend = Callable[[Array, Array, Array, Array, Any], tuple[Array, Any]]


class Context(NamedTuple):
    """Where the tokens of a call stand, and what they attend to.

    Attributes:
      positions_BT: tokens before each token in its text, int32 (B or 1, T).
      attend: in place of causal attention among the tokens of the call.
      memory: a tree of arrays that `attend` reads and returns updated, such as a cache.
    """

    positions_BT: Array
    attend: Attend
    memory: Any


# Causal attention works on this many blocks of queries, each against the keys up to its end: three
# eighths of the square is never computed. Shorter sequences than the block take one.
QUERY_BLOCKS = 4
SMALLEST_QUERY_BLOCK = 64


def causal_attention(q_BTHd: Array, k_BTHd: Array, v_BTHd: Array, kernel: str) -> Array:
    """Causal softmax attention at scale d^-1/2; scores and softmax in float32.

    `kernel` is a `model.attention`: "xla" for plain matrix products, "splash" or "cudnn" for the
    fused kernel of a platform, "auto" for what `kernels.choose` takes here.

    Raises:
      ValueError: the kernel cannot do this here.
    """
    if kernel != "xla":
        place = kernels.place_of(jax.sharding.get_abstract_mesh())
        kernel = kernels.choose(kernel, q_BTHd.shape, q_BTHd.dtype, place)
    if kernel != "xla":
        return {"splash": kernels.splash, "cudnn": kernels.cudnn}[kernel](q_BTHd, k_BTHd, v_BTHd)
    T = q_BTHd.shape[1]
    block = max(SMALLEST_QUERY_BLOCK, -(-T // QUERY_BLOCKS))
    q_BHTd, k_BHTd, v_BHTd = (jnp.swapaxes(x, 1, 2) for x in (q_BTHd, k_BTHd, v_BTHd))
    blocks = [
        attention_at(
            q_BHTd[:, :, start:end], k_BHTd[:, :, :end], v_BHTd[:, :, :end],
            jnp.arange(start, end)[None],
        )
        for start in range(0, T, block)
        for end in [min(start + block, T)]
    ]  # fmt: skip
    mixed_BHTd = blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=2)
    return jnp.swapaxes(mixed_BHTd, 1, 2)


def attention_at(q_BHTd: Array, k_BHSd: Array, v_BHSd: Array, positions_BT: Array) -> Array:
    """Softmax attention (B, H, T, d) of queries at positions (B or 1, T) to entries 0 and on.

    A query at position p sees entries 0 to p, so its own has to be among them. Scale d^-1/2, scores
    and softmax in float32.
    """
    S = k_BHSd.shape[2]
    scores_BHTS = jnp.matmul(
        q_BHTd * q_BHTd.dtype.type(q_BHTd.shape[3] ** -0.5),
        jnp.swapaxes(k_BHSd, 2, 3),
        preferred_element_type=jnp.float32,
    )
    visible_BTS = positions_BT[:, :, None] >= jnp.arange(S)[None, None]
    scores_BHTS = jnp.where(visible_BTS[:, None], scores_BHTS, jnp.float32(-jnp.inf))
    weights_BHTS = jax.nn.softmax(scores_BHTS, axis=-1).astype(v_BHSd.dtype)
    return jnp.matmul(weights_BHTS, v_BHSd)
