"""Drawn depths follow the stated distribution, and its mean is the configured one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare, lognorm, poisson

from looped_jax.errors import UserError
from looped_jax.training.depth import DepthConfig, DepthSampler

DRAWS = 40_000


def config(**changes):
    fields = {
        "kind": "lognormal_poisson",
        "per": "step",
        "mean": 32.0,
        "sigma": 0.5,
        "minimum": 1,
        "maximum": 96,
    }
    return DepthConfig(**(fields | changes))


CASES = {
    "huginn": config(),
    "plain Poisson": config(mean=4.0, sigma=0.0, maximum=20),
    "clipped from both sides": config(mean=6.0, minimum=4, maximum=9, sigma=1.0),
    "below one plus one": config(mean=1.5, maximum=6),
    "near the maximum": config(mean=7.5, maximum=8),
    "uniform": config(kind="uniform", mean=5.5, minimum=3, maximum=8),
    "fixed": config(kind="fixed", mean=4, minimum=4, maximum=4),
}
each = pytest.mark.parametrize("depth", CASES.values(), ids=CASES.keys())


def draws(depth):
    sampler = DepthSampler(depth)
    if depth.per == "sequence":
        return np.asarray(sampler.sample(3, 7, DRAWS))
    return np.asarray(jax.jit(jax.vmap(lambda step: sampler.sample(3, step, 8)))(jnp.arange(DRAWS)))


@each
def test_the_distributions_mean_is_the_configured_one(depth):
    depths, probabilities = DepthSampler(depth).distribution()
    assert probabilities.min() >= 0
    np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(depths @ probabilities, depth.mean, rtol=1e-9)


def test_the_distribution_against_direct_integration():
    depth = CASES["clipped from both sides"]
    sampler = DepthSampler(depth)
    scale = np.exp(sampler.location - depth.sigma**2 / 2)
    # Midpoints of a million equally likely slices of the log-normal rate.
    rates = lognorm.ppf((np.arange(1_000_000) + 0.5) / 1e6, depth.sigma, scale=scale)
    cdf = [poisson.cdf(k - 1, rates).mean() for k in range(4, 9)]
    expected = np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    np.testing.assert_allclose(sampler.distribution()[1], expected, atol=2e-6)


@pytest.mark.parametrize(
    "depth",
    [*CASES.values(), config(mean=4.0, maximum=8, per="sequence")],
    ids=[*CASES.keys(), "per sequence"],
)
def test_draws_follow_the_distribution(depth):
    drawn = draws(depth)
    assert drawn.dtype == np.int32
    assert depth.minimum <= drawn.min() <= drawn.max() <= depth.maximum
    assert abs(drawn.mean() - depth.mean) <= 4 * drawn.std() / np.sqrt(DRAWS)
    depths, probabilities = DepthSampler(depth).distribution()
    if len(depths) == 1:
        return
    counts = np.array([(drawn == k).sum() for k in depths])
    rare = probabilities * DRAWS < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(probabilities[~rare], probabilities[rare].sum()) * DRAWS
    keep = expected > 0
    assert chisquare(observed[keep], expected[keep], sum_check=False).pvalue > 1e-3


def test_a_draw_depends_on_seed_and_step_alone():
    sampler = DepthSampler(config())
    sample = jax.jit(lambda seed, step: sampler.sample(seed, step, 8))
    by_step = [int(sample(0, step)) for step in range(20)]
    assert [int(sampler.sample(0, step, 8)) for step in range(20)] == by_step
    assert [int(sample(1, step)) for step in range(20)] != by_step
    assert len(set(by_step)) > 5
    assert sample._cache_size() == 1
    with jax.default_prng_impl("rbg"):
        assert [int(sampler.sample(0, step, 8)) for step in range(20)] == by_step


def test_sequences_of_a_batch_differ_and_devices_agree():
    sampler = DepthSampler(config(per="sequence"))
    sample = lambda step: sampler.sample(0, step, 64)
    plain = jax.jit(sample)(jnp.int32(5))
    assert len(np.unique(plain)) > 10
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    np.testing.assert_array_equal(jax.jit(sample, out_shardings=rows)(jnp.int32(5)), plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "poisson"}, r"depth\.kind is 'poisson'; allowed: fixed, lognormal_poisson"),
        ({"per": "token"}, r"depth\.per is 'token'; allowed: step, sequence"),
        ({"minimum": 0}, r"depth\.minimum is 0; at least 1"),
        ({"maximum": 0}, r"depth\.maximum is 0; at least depth\.minimum = 1"),
        ({"sigma": -1.0}, r"depth\.sigma is -1\.0"),
        ({"mean": 96.0}, r"depth\.mean is 96\.0; after clipping to \[1, 96\]"),
        ({"mean": 1.0}, r"depth\.mean is 1\.0; after clipping"),
        ({"kind": "uniform"}, r"depth\.mean is 32\.0; uniform on \[1, 96\] has mean 48\.5"),
        ({"kind": "fixed"}, r"depth\.mean is 32\.0; for a fixed depth depth\.minimum = 1 "),
        ({"mean": 7.0, "maximum": 8, "sigma": 30.0}, r"at depth\.sigma = 30\.0 it cannot be"),
    ],
)
def test_errors(changes, message):
    with pytest.raises(UserError, match=message):
        DepthSampler(config(**changes))
