"""The chunked cross-entropy equals the plain one, in value and gradient, and stores no logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.training.losses import (
    chunked_cross_entropy,
    loop_cross_entropy,
    norm_penalty,
    token_cross_entropy,
)

N, D, V, K = 30, 8, 50, 3


def plain_nats(h, kernel, targets, softcap):
    logits = jnp.matmul(h, kernel)
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]


def inputs(scale=3.0):
    keys = jax.random.split(jax.random.key(0), 4)
    return (
        scale * jax.random.normal(keys[0], (N, D)),
        jax.random.normal(keys[1], (D, V)),
        jax.random.randint(keys[2], (N,), 0, V),
        jax.random.uniform(keys[3], (N,)),
    )


def assert_close(actual, expected, rtol=1e-5):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(jnp.abs(b).max()))


@pytest.mark.parametrize(
    ("softcap", "chunk"),
    [(15.0, 1), (15.0, 7), (15.0, 10), (15.0, N), (None, 7), (None, 100), (50.0, 7)],
)
def test_equals_the_plain_loss(softcap, chunk):
    h, kernel, targets, _ = inputs()
    actual = jax.jit(
        jax.value_and_grad(
            lambda h, kernel: chunked_cross_entropy(
                h, kernel, targets, softcap=softcap, chunk=chunk
            ),
            argnums=(0, 1),
        )
    )(h, kernel)
    expected = jax.value_and_grad(
        lambda h, kernel: plain_nats(h, kernel, targets, softcap).mean(), argnums=(0, 1)
    )(h, kernel)
    assert_close(actual, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk", [8, N])
def test_weights_and_their_gradient(reduction, chunk):
    h, kernel, targets, weights = inputs()

    def plain(h, kernel, weights):
        total = jnp.sum(weights * plain_nats(h, kernel, targets, 15.0))
        return total / jnp.sum(weights) if reduction == "mean" else total

    def chunked(h, kernel, weights):
        return chunked_cross_entropy(
            h, kernel, targets, softcap=15.0, chunk=chunk, weights_N=weights, reduction=reduction
        )

    # An outer factor: the gradients formed in the forward pass have to be scaled by it.
    outer = lambda f: jax.value_and_grad(lambda *a: jnp.square(f(*a)), argnums=(0, 1, 2))
    assert_close(outer(chunked)(h, kernel, weights), outer(plain)(h, kernel, weights))


def test_a_token_without_weight_counts_for_nothing():
    h, kernel, targets, _ = inputs()
    weights = jnp.ones(N).at[4].set(0.0)
    loss = lambda h, targets: chunked_cross_entropy(
        h, kernel, targets, softcap=15.0, chunk=7, weights_N=weights
    )
    changed = loss(h.at[4].set(9.0), targets.at[4].set((targets[4] + 1) % V))
    assert float(changed) == float(loss(h, targets))
    assert not np.any(jax.grad(loss)(h, targets)[4])


def test_huge_logits_stay_finite_without_a_cap():
    h, kernel, targets, _ = inputs(scale=1e3)
    loss, gradient = jax.value_and_grad(
        lambda h: chunked_cross_entropy(h, kernel, targets, softcap=None, chunk=8)
    )(h)
    np.testing.assert_allclose(loss, plain_nats(h, kernel, targets, None).mean(), rtol=1e-5)
    assert np.all(np.isfinite(gradient))


def test_a_tied_head_gets_its_gradient_in_the_embedding_layout():
    h, kernel, targets, _ = inputs()
    embedding = kernel.T
    actual = jax.grad(
        lambda e: (
            chunked_cross_entropy(h, e.T, targets, softcap=None, chunk=8) + jnp.sum(e[targets] * h)
        )
    )(embedding)
    expected = jax.grad(
        lambda e: plain_nats(h, e.T, targets, None).mean() + jnp.sum(e[targets] * h)
    )(embedding)
    assert_close(actual, expected)


@pytest.mark.parametrize("chunk", [8, N])
def test_bfloat16_states_accumulate_in_float32(chunk):
    h, kernel, targets, _ = inputs(scale=1.0)
    h = h.astype(jnp.bfloat16)
    loss, (gradient_h, gradient_kernel) = jax.value_and_grad(
        lambda h, kernel: chunked_cross_entropy(h, kernel, targets, softcap=15.0, chunk=chunk),
        argnums=(0, 1),
    )(h, kernel)
    assert (loss.dtype, gradient_h.dtype) == (jnp.float32, jnp.bfloat16)
    assert gradient_kernel.dtype == jnp.float32
    # The same rounded operands in float32: what is left is the rounding of the logits' gradient.
    rounded = kernel.astype(jnp.bfloat16).astype(jnp.float32)
    expected, (_, expected_kernel) = jax.value_and_grad(
        lambda h, kernel: plain_nats(h, kernel, targets, 15.0).mean(), argnums=(0, 1)
    )(h.astype(jnp.float32), rounded)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    error = jnp.abs(gradient_kernel - expected_kernel).max() / jnp.abs(expected_kernel).max()
    assert error < 4e-3


@pytest.mark.parametrize(("chunk", "own_targets"), [(8, True), (N, False), (N, True)])
def test_loops_with_weights(chunk, own_targets):
    _, kernel, targets, _ = inputs()
    targets_KN = jnp.stack([jnp.roll(targets, own_targets * k) for k in range(K)])
    h_KND = jax.random.normal(jax.random.key(5), (K, N, D))
    weights = jnp.array([0.2, 0.0, 2.0])

    def plain(h_KND, kernel, weights):
        of_loop = lambda h, y: plain_nats(h, kernel, y, 15.0).mean()
        losses = jax.vmap(of_loop)(h_KND, targets_KN)
        return jnp.dot(weights, losses), losses

    def chunked(h_KND, kernel, weights):
        asked = targets_KN if own_targets else targets
        return loop_cross_entropy(h_KND, kernel, asked, weights, softcap=15.0, chunk=chunk)

    gradients = lambda f: jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)
    assert_close(
        jax.jit(gradients(chunked))(h_KND, kernel, weights),
        gradients(plain)(h_KND, kernel, weights),
    )


@pytest.mark.parametrize("chunk", [7, N])
def test_losses_of_single_tokens(chunk):
    h, kernel, targets, _ = inputs()
    actual = token_cross_entropy(h, kernel, targets, softcap=15.0, chunk=chunk)
    assert_close(actual, plain_nats(h, kernel, targets, 15.0))
    blind = jax.grad(
        lambda h: token_cross_entropy(h, kernel, targets, softcap=15.0, chunk=chunk).sum()
    )
    assert not np.any(blind(h))


def test_norm_penalty_is_the_mean_over_loops():
    states = jax.random.normal(jax.random.key(0), (K, 2, 5, D), jnp.bfloat16)
    expected = np.mean([np.mean(np.square(np.asarray(s, np.float64))) for s in states])
    penalty = norm_penalty(states)
    assert penalty.dtype == jnp.float32
    np.testing.assert_allclose(penalty, expected, rtol=1e-6)


@pytest.mark.parametrize("loops", [1, 4])
def test_memory_holds_one_chunk_of_logits(loops):
    tokens, width, vocabulary, chunk = 1024, 16, 4096, 64
    states = jax.ShapeDtypeStruct((loops, tokens, width), jnp.float32)
    kernel = jax.ShapeDtypeStruct((width, vocabulary), jnp.float32)
    targets = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    weights = jax.ShapeDtypeStruct((loops,), jnp.float32)
    step = jax.grad(
        lambda h, kernel, y, w: loop_cross_entropy(h, kernel, y, w, softcap=15.0, chunk=chunk)[0],
        argnums=(0, 1),
    )
    compiled = jax.jit(step).lower(states, kernel, targets, weights).compile()
    logits = 4 * chunk * vocabulary
    memory = compiled.memory_analysis().temp_size_in_bytes
    kernels = 4 * width * vocabulary
    assert memory < 4 * logits + 4 * kernels + 8 * 4 * loops * tokens * width


def test_tokens_spread_over_devices_are_not_gathered():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    keys = jax.random.split(jax.random.key(0), 3)
    h, kernel = jax.random.normal(keys[0], (256, D)), jax.random.normal(keys[1], (D, V))
    targets = jax.random.randint(keys[2], (256,), 0, V)
    step = jax.jit(
        jax.value_and_grad(
            lambda h, kernel, y: chunked_cross_entropy(h, kernel, y, softcap=15.0, chunk=64),
            argnums=(0, 1),
        )
    )
    spread = (
        jax.device_put(h, rows),
        jax.device_put(kernel, whole),
        jax.device_put(targets, rows),
    )
    program = step.lower(*spread).compile()
    assert "all-gather" not in program.as_text()
    assert_close(program(*spread), step(h, kernel, targets))
