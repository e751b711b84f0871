"""Cross-entropy over a large vocabulary, supervision of the loops, and the norm penalty.

Letters: N tokens, D width, V vocabulary, K supervised loops, C tokens of one chunk. Losses are in
nats and float32. States are what the readout multiplies with the head's kernel: already normalised
where the model normalises.
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

# With logits within ±40, exp neither overflows nor loses the sum's small terms in float32, so the
# pass over the logits that finds each row's maximum is saved.
LARGEST_SOFTCAP_WITHOUT_MAXIMUM = 40.0


def chunked_cross_entropy(
    h_ND: jax.Array,
    head_kernel_DV: jax.Array,
    targets_N: jax.Array,
    *,
    softcap: float | None,
    chunk: int,
    weights_N: jax.Array | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> jax.Array:
    """Cross-entropy of softmax(cap(h @ kernel)) against the targets, a float32 scalar in nats.

    At most `chunk` rows of logits exist at a time, in both directions: the gradients are formed
    while the logits are there. The matrix products take operands of h's dtype (the kernel is cast)
    and accumulate in float32; the kernel's gradient is float32 until the end. The result is
    differentiable once, in reverse mode, in h, kernel and weights.

    `softcap` c replaces each logit x by c·tanh(x/c); None leaves it as it is. `weights_N` (≥ 0)
    multiplies each token's loss, and the mean is the weighted one: it divides by the weights' sum.
    A tied head passes `embedding_VD.T`. A chunk holds every n-th token, so that tokens that lie
    spread over devices stay there if their number divides the chunk.
    """
    if weights_N is None:
        weights_N = jnp.ones(targets_N.shape, jnp.float32)
    weights_N = weights_N.astype(jnp.float32)
    if reduction == "mean":
        weights_N = weights_N / jnp.sum(weights_N)
    shape = _Chunking(softcap, chunk)
    return _cross_entropy(shape, h_ND[None], head_kernel_DV, targets_N[None], weights_N[None])[0]


def loop_cross_entropy(
    h_KND: jax.Array,
    head_kernel_DV: jax.Array,
    targets: jax.Array,
    loop_weights_K: jax.Array,
    *,
    softcap: float | None,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """Σ_k w_k · (mean cross-entropy of loop k), and the K means by themselves (no gradient), nats.

    Targets are (N,), the same for all loops, or (K, N). The weights are used as they are: equal
    supervision of every loop is w_k = 1/K. All loops add to one gradient of the kernel. Chunks and
    dtypes are those of `chunked_cross_entropy`.
    """
    loops, tokens, _ = h_KND.shape
    targets_KN = jnp.broadcast_to(targets, (loops, tokens))
    weights_KN = jnp.broadcast_to(
        loop_weights_K.astype(jnp.float32)[:, None] / tokens, (loops, tokens)
    )
    shape = _Chunking(softcap, chunk)
    loss, nats_KN = _cross_entropy(shape, h_KND, head_kernel_DV, targets_KN, weights_KN)
    return loss, jnp.mean(jax.lax.stop_gradient(nats_KN), axis=1)


def token_cross_entropy(
    h_ND: jax.Array,
    head_kernel_DV: jax.Array,
    targets_N: jax.Array,
    *,
    softcap: float | None,
    chunk: int,
) -> jax.Array:
    """Each token's cross-entropy (N,) in nats, for evaluation: it passes no gradient."""
    unused = jnp.zeros((1, *targets_N.shape), jnp.float32)
    shape = _Chunking(softcap, chunk)
    nats_KN = _cross_entropy(shape, h_ND[None], head_kernel_DV, targets_N[None], unused)[1]
    return jax.lax.stop_gradient(nats_KN[0])


def norm_penalty(states_K: jax.Array) -> jax.Array:
    """Mean over loops of mean(H_k²), float32: the term that λ multiplies (arXiv:2606.24898).

    `states_K` is (K, …, D), the states before the readout; every loop has as many elements, so the
    mean over all is the mean of the loops' means.
    """
    return jnp.mean(jnp.square(states_K.astype(jnp.float32)))


class _Chunking(NamedTuple):
    """What the compiled loss is specialised on."""

    softcap: float | None
    chunk: int

    def split(self, tokens: int) -> tuple[int, int]:
        """(tokens of a chunk, number of chunks): the fewest chunks, evenly filled."""
        chunks = math.ceil(tokens / self.chunk)
        return math.ceil(tokens / chunks), chunks


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropy(shape: _Chunking, h_KND, kernel_DV, targets_KN, weights_KN):
    """(Σ weights · nats, nats_KN); the second passes no gradient."""
    kernel_DV = kernel_DV.astype(h_KND.dtype)

    def nats(carry, h_CD, y_C, _weights_C):
        return carry, _nats(shape.softcap, h_CD, kernel_DV, y_C)[0]

    _, nats_KN = _over_chunks(shape, nats, None, h_KND, targets_KN, weights_KN)
    return jnp.sum(weights_KN * nats_KN), nats_KN


def _forward(shape: _Chunking, h_KND, kernel_DV, targets_KN, weights_KN):
    compute_DV = kernel_DV.astype(h_KND.dtype)

    def nats_and_gradients(gradient_DV, h_CD, y_C, weights_C):
        nats_C, gradient_CV = _nats(shape.softcap, h_CD, compute_DV, y_C)
        gradient_CV = (gradient_CV * weights_C[:, None]).astype(h_CD.dtype)
        gradient_CD = _matmul(gradient_CV, compute_DV.T).astype(h_CD.dtype)
        return gradient_DV + _matmul(h_CD.T, gradient_CV), (nats_C, gradient_CD)

    zeros_DV = jnp.zeros(kernel_DV.shape, jnp.float32)
    gradient_DV, (nats_KN, gradient_KND) = _over_chunks(
        shape, nats_and_gradients, zeros_DV, h_KND, targets_KN, weights_KN
    )
    residuals = (gradient_KND, gradient_DV.astype(kernel_DV.dtype), nats_KN)
    return (jnp.sum(weights_KN * nats_KN), nats_KN), residuals


def _backward(_shape: _Chunking, residuals, cotangents):
    gradient_KND, gradient_DV, nats_KN = residuals
    scale, _ = cotangents  # the tokens' nats pass no gradient
    return (
        gradient_KND * scale.astype(gradient_KND.dtype),
        gradient_DV * scale.astype(gradient_DV.dtype),
        None,
        nats_KN * scale,
    )


_cross_entropy.defvjp(_forward, _backward)


def _nats(softcap: float | None, h_CD, kernel_DV, y_C):
    """One chunk's nats (C,) and their derivative by the logits before the cap (C, V)."""
    logits_CV = _matmul(h_CD, kernel_DV)
    slope_CV = None
    if softcap is not None:
        tanh_CV = jnp.tanh(logits_CV / softcap)
        logits_CV, slope_CV = softcap * tanh_CV, 1.0 - jnp.square(tanh_CV)
    target_C = jnp.take_along_axis(logits_CV, y_C[:, None], axis=1)[:, 0]
    if softcap is None or softcap > LARGEST_SOFTCAP_WITHOUT_MAXIMUM:
        largest_C = jnp.max(logits_CV, axis=1)
        logits_CV, target_C = logits_CV - largest_C[:, None], target_C - largest_C
    exp_CV = jnp.exp(logits_CV)
    sum_C = jnp.sum(exp_CV, axis=1)
    is_target_CV = jnp.arange(logits_CV.shape[1], dtype=y_C.dtype)[None, :] == y_C[:, None]
    gradient_CV = exp_CV / sum_C[:, None] - is_target_CV.astype(jnp.float32)
    if slope_CV is not None:
        gradient_CV = gradient_CV * slope_CV
    return jnp.log(sum_C) - target_C, gradient_CV


def _over_chunks(shape: _Chunking, step, carry, h_KND, targets_KN, weights_KN):
    """Run `step(carry, h_CD, y_C, weights_C) → (carry, outputs with leading C)` over all chunks.

    Returns the last carry and the outputs with leading (K, N). Tokens that fill up the last chunks
    have weight 0. One chunk of one loop is called without a loop around it: small vocabularies are
    fastest so.
    """
    loops, tokens, width = h_KND.shape
    size, chunks = shape.split(tokens)
    if loops == chunks == 1:
        carry, outputs = step(carry, h_KND[0], targets_KN[0], weights_KN[0])
        return carry, jax.tree.map(lambda x: x[None], outputs)

    missing = size * chunks - tokens
    # Chunk i is [:, i] of (size, chunks): the major axis, which a mesh may split, stays whole.
    h = jnp.pad(h_KND, ((0, 0), (0, missing), (0, 0))).reshape(loops, size, chunks, width)
    y = jnp.pad(targets_KN, ((0, 0), (0, missing))).reshape(loops, size, chunks)
    w = jnp.pad(weights_KN, ((0, 0), (0, missing))).reshape(loops, size, chunks)

    def body(carry, index):
        loop, i = index // chunks, index % chunks
        h_CD = jax.lax.dynamic_slice(h, (loop, 0, i, 0), (1, size, 1, width)).reshape(size, width)
        y_C = jax.lax.dynamic_slice(y, (loop, 0, i), (1, size, 1)).reshape(size)
        w_C = jax.lax.dynamic_slice(w, (loop, 0, i), (1, size, 1)).reshape(size)
        return step(carry, h_CD, y_C, w_C)

    carry, outputs = jax.lax.scan(body, carry, jnp.arange(loops * chunks))

    def to_tokens(x):
        x = jnp.moveaxis(x.reshape(loops, chunks, size, *x.shape[2:]), 1, 2)
        return x.reshape(loops, size * chunks, *x.shape[3:])[:, :tokens]

    return carry, jax.tree.map(to_tokens, outputs)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)
