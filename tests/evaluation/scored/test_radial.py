"""The two lemmas about scale (arXiv:2606.24898), and the parts of an update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.evaluation.scored import radial

RNG = np.random.default_rng(0)


def unit_vectors(shape=(2, 3, 8)):
    x = RNG.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def cross_entropy_of(normalise):
    """Of two tokens' states through a random head."""
    head, targets = jnp.asarray(RNG.standard_normal((8, 5))), jnp.asarray([[1], [4]])

    def loss(h_ND):
        x_ND = h_ND
        if normalise:
            x_ND = h_ND / jnp.sqrt(jnp.mean(jnp.square(h_ND), -1, keepdims=True))
        log_p = jax.nn.log_softmax(x_ND @ head)
        return -jnp.sum(jnp.take_along_axis(log_p, targets, 1))

    return loss


def test_a_scale_invariant_readout_has_no_radial_derivative():
    with jax.enable_x64(True):
        h = jnp.asarray(3.0 * RNG.standard_normal((2, 8)))
        for normalise in (True, False):
            loss = cross_entropy_of(normalise)
            g = jax.grad(loss)(h)
            cosine = jnp.abs(radial.inner(g[None], h[None])) / (
                radial.norm(g[None]) * radial.norm(h[None])
            )
            # The derivative by the scale itself, without the gradient.
            by_scale = jax.jvp(lambda a, loss=loss: loss(a * h), (1.0,), (1.0,))[1]
            if normalise:
                assert float(jnp.max(cosine)) < 1e-12
                assert abs(float(by_scale)) < 1e-6
                assert float(loss(7.0 * h) - loss(h)) == pytest.approx(0, abs=1e-12)
            else:
                assert float(jnp.min(cosine)) > 1e-2
                assert abs(float(by_scale)) > 1e-2


def test_an_update_that_does_not_see_scale_expands_as_stated():
    """F(s u) = s u + b(u): what the expansion leaves out falls as 1 / s²."""
    u = unit_vectors()
    b = np.tanh(u @ RNG.standard_normal((8, 8))) + 0.5 * u
    along = np.sum(u * b, -1)
    across = np.linalg.norm(b - along[..., None] * u, axis=-1)
    left_out = []
    with jax.enable_x64(True):
        for s in (1e2, 2e2, 4e2):
            old = jnp.asarray(s * u)
            new = jnp.asarray(s * u + b)
            found = radial.update(old, new)
            np.testing.assert_allclose(found.size, s)
            np.testing.assert_allclose(found.radial, along, rtol=1e-9)
            np.testing.assert_allclose(found.tangential, across, rtol=1e-9)
            norm, angle = radial.predicted(found.size, found.radial, found.tangential)
            left_out.append(
                (
                    np.max(np.abs(norm - np.linalg.norm(s * u + b, axis=-1))),
                    np.max(np.abs(angle - found.angle)),
                )
            )
    falls = np.array(left_out[:-1]) / np.array(left_out[1:])
    np.testing.assert_allclose(falls, 4, rtol=0.03)
    assert np.max(left_out[0]) < 1e-3


def test_the_angle_is_that_between_the_states():
    old, new = RNG.standard_normal((2, 3, 8)), RNG.standard_normal((2, 3, 8))
    cosine = np.sum(old * new, -1) / (np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1))
    found = radial.update(jnp.float32(old), jnp.float32(new))
    np.testing.assert_allclose(found.angle, np.arccos(cosine), rtol=1e-5)
    # A step of 1e-5 radians, which the arc cosine of a float32 product cannot tell from 0.
    u = np.float32(unit_vectors())
    v = np.float32(unit_vectors())
    v = v - np.sum(u * v, -1, keepdims=True) * u
    tiny = radial.update(jnp.asarray(u), jnp.asarray(u + 1e-5 * v))
    np.testing.assert_allclose(tiny.angle, 1e-5 * np.linalg.norm(v, axis=-1), rtol=0.02)


def test_a_state_of_zero_has_no_direction():
    found = radial.update(jnp.zeros((1, 1, 4)), jnp.ones((1, 1, 4)))
    assert found.size == 0
    assert np.isnan([found.radial, found.tangential, found.angle]).all()


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 2, 3, 8)])
def test_interventions(shape):
    """States, and lanes that are one state."""
    old, new = (jnp.float32(RNG.standard_normal(shape)) for _ in range(2))
    axes = radial.state_axes(old)
    size = jnp.float32(RNG.uniform(1, 3, (2, 3)))
    held = radial.rescaled(new, size)
    np.testing.assert_allclose(radial.norm(held), size, rtol=1e-5)
    np.testing.assert_allclose(radial.update(new, held).angle, 0, atol=1e-3)
    straight = radial.without_radial_update(old, new)
    np.testing.assert_allclose(np.sum((straight - old) * old, axes), 0, atol=1e-5)
    np.testing.assert_allclose(
        radial.update(old, straight).tangential, radial.update(old, new).tangential, rtol=1e-4
    )
    zero = jnp.zeros(shape, jnp.float32)
    np.testing.assert_array_equal(radial.rescaled(zero, size), zero)


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_what_is_left_of_the_radial_part_behind_rmsnorm_is_its_epsilon(size):
    """⟨∇_h L, h⟩ = ε / (mean h² + ε) ⟨∇_n L, n⟩ with n = h / √(mean h² + ε), in float64.

    Without ε nothing is left but the rounding of float64.
    """
    rng = np.random.default_rng(0)
    states_ND, head_DV = size * rng.standard_normal((50, 32)), rng.standard_normal((32, 40))
    targets_N1 = rng.integers(0, 40, (50, 1))

    def loss(normed_ND):
        log_p = jax.nn.log_softmax(normed_ND @ head_DV)
        return -jnp.sum(jnp.take_along_axis(log_p, targets_N1, 1))

    def normed(h_ND, epsilon):
        return h_ND / jnp.sqrt(jnp.mean(jnp.square(h_ND), -1, keepdims=True) + epsilon)

    fractions = {}
    with jax.enable_x64(True):
        h_ND = jnp.asarray(states_ND)
        for epsilon in (1e-6, 0.0):
            n_ND = normed(h_ND, epsilon)
            gradient_ND = jax.grad(lambda h, e=epsilon: loss(normed(h, e)))(h_ND)
            along_N = jnp.sum(gradient_ND * h_ND, -1)
            share_N = share_of(states_ND, epsilon)
            expected_N = share_N * jnp.sum(jax.grad(loss)(n_ND) * n_ND, -1)
            np.testing.assert_allclose(along_N, expected_N, rtol=1e-6, atol=1e-13)
            length_N = jnp.linalg.norm(gradient_ND, axis=-1) * jnp.linalg.norm(h_ND, axis=-1)
            fractions[epsilon] = np.asarray(jnp.abs(along_N) / length_N)
    assert fractions[1e-6].mean() > 1e6 * fractions[0.0].mean()
    assert 0.1 < np.median(fractions[1e-6] / share_of(states_ND, 1e-6)) < 1


def share_of(states_ND, epsilon):
    return epsilon / (np.mean(np.square(states_ND), -1) + epsilon)
