"""The readout suite: gradients, interventions and losses against direct computations."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.config import LossConfig
from looped_jax.errors import UserError
from looped_jax.evaluation.readout import suite as module
from looped_jax.evaluation.readout import throughput
from looped_jax.evaluation.readout.scorer import Gradient, Loop, objective_gradients
from looped_jax.evaluation.readout.suite import check_loops, radial_fraction, readout_suite
from looped_jax.evaluation.scored import radial
from looped_jax.evaluation.scored.bootstrap import Bootstrap
from looped_jax.evaluation.scored.windows import ScoredText
from looped_jax.model.frozen import FrozenModel
from tests.evaluation.conftest import elastic, run_of, some_tokens
from tests.model.tiny import READOUT, random_params, tiny

CHUNK = 7


def family(**changes):
    """The readout family; a tiny ε, so that what is measured is the norm and not its ε."""
    return tiny(**READOUT | {"norm_epsilon": 1e-12, "vocab_size": 300} | changes)


def loop_of(model, mask=None):
    tokens = jnp.asarray(some_tokens(model))
    mask = jnp.ones((2, 8), bool) if mask is None else mask
    return Loop(model, random_params(model), tokens, mask, CHUNK), tokens


def free(loop, R):
    return loop.states(R, lambda _old, new, _size: new)


def fraction(gradient, states):
    cosine = radial.inner(gradient, states) / (radial.norm(gradient) * radial.norm(states))
    return np.abs(np.asarray(cosine))


@pytest.mark.parametrize("readout_norm", ["every", "none", "last"])
def test_losses_and_gradients_of_every_loop(readout_norm):
    model = family(readout_norm=readout_norm)
    loop, tokens = loop_of(model)
    states = jax.jit(lambda: free(loop, 6))()
    gradients, nats = jax.jit(lambda: loop.gradients(states))()
    np.testing.assert_allclose(nats, jax.jit(lambda: loop.nats(states))(), rtol=1e-5)
    frozen = FrozenModel(model, random_params(model))

    def direct(state, last):
        log_p = jax.nn.log_softmax(frozen.readout(frozen.coda(state), last=last))
        return -jnp.take_along_axis(log_p, tokens[:, 1:, None], -1)[..., 0]

    for i in range(6):
        last = i >= model.recurrences - 1  # the fourth loop is the last in training
        np.testing.assert_allclose(nats[i], direct(states[i], last), rtol=2e-5)
        expected = jax.grad(lambda h, last=last: direct(h, last).sum())(states[i])
        np.testing.assert_allclose(gradients[i], expected, atol=1e-6, rtol=1e-4)
        # The blind spot: behind a norm no gradient lies along the state.
        along = fraction(gradients[i], states[i])
        normalised = readout_norm == "every" or (readout_norm == "last" and last)
        assert along.max() < 1e-6 if normalised else along.mean() > 1e-2


@pytest.mark.parametrize(
    "loss",
    [
        LossConfig("every", (0.1, 0.2, 0.3, 0.4), 0.5, CHUNK),
        LossConfig("last", (), 0.0, CHUNK),
        LossConfig("every", (), 0.0, CHUNK),
    ],
    ids=["weights and penalty", "last", "equal"],
)
def test_the_gradient_of_the_objective_is_that_of_nudging_a_state(loss):
    model = family(readout_norm="last")
    mask = jnp.ones((2, 8), bool).at[1, 5:].set(False)
    loop, _ = loop_of(model, mask)
    K = model.recurrences

    def objective(nudges):
        state, states = loop.start, []
        for i in range(K):
            state = loop.recur(state, i) + nudges[i]
            states.append(state)
        nats = jnp.mean(loop_nats(loop, jnp.stack(states)) * mask[None].astype(jnp.float32), (1, 2))
        weights = jnp.asarray(loss.loop_weights or [1 / K] * K)
        if loss.supervision == "last":
            weights = jnp.eye(K)[-1]
        return weights @ nats + loss.norm_penalty * jnp.mean(jnp.square(jnp.stack(states)))

    def loop_nats(loop, states):
        total = lambda h, i: loop._readout_input(h, last=i == K - 1) @ loop._kernel_DV
        logits = jnp.stack([total(h, i) for i, h in enumerate(states)])
        log_p = jax.nn.log_softmax(logits)
        targets = jnp.broadcast_to(loop._targets_N[None, :, None], (K, 16, 1))
        return -jnp.take_along_axis(log_p, targets, -1)[..., 0].reshape(K, 2, 8)

    zeros = jnp.zeros((K, *loop.start.shape), jnp.float32)
    expected = 16 * jax.jit(jax.grad(objective))(zeros)

    def found():
        states = free(loop, K)
        return objective_gradients(loop, loss, states, loop.gradients(states)[0])

    np.testing.assert_allclose(jax.jit(found)(), expected, rtol=2e-4, atol=2e-6)


def test_interventions_reach_every_loop_after_the_first():
    model = family()
    loop, _ = loop_of(model)
    states = free(loop, 5)
    held = loop.states(5, lambda _old, new, size: radial.rescaled(new, size))
    np.testing.assert_array_equal(held[0], states[0])
    norms = np.linalg.norm(held, axis=-1)
    np.testing.assert_allclose(norms, np.broadcast_to(norms[0], norms.shape), rtol=1e-5)
    free_second = loop.recur(held[0], 1)
    assert radial.update(free_second, held[1]).angle.max() < 1e-3  # only its size has changed
    straight = loop.states(5, lambda old, new, _size: radial.without_radial_update(old, new))
    for old, new in itertools.pairwise(straight):
        part = radial.update(old, new)
        np.testing.assert_allclose(part.radial / part.tangential, 0, atol=1e-4)


def test_a_pre_norm_stack_obeys_the_expansion_at_large_scale():
    """The radial step is constant and the angular step as 1 / s where the state is large."""
    model = family()
    loop, _ = loop_of(model)
    big = radial.rescaled(loop.recur(loop.start, 0), jnp.full((2, 8), 300.0))
    found = loop.probe(big)
    np.testing.assert_allclose(found.radial[-1], found.radial[-2], rtol=0.05, atol=0.01)
    product = np.asarray(found.angle * found.size)
    np.testing.assert_allclose(product[-1], product[-2], rtol=0.01)
    np.testing.assert_allclose(found.angle[-1], found.tangential[-1] / found.size[-1], rtol=1e-3)


def test_radial_fractions_of_known_gradients():
    text = ScoredText(np.arange(40), *[np.zeros(40, int)] * 4)
    bootstrap = Bootstrap(text, 50, 0)
    norm = np.full((1, 40), 2.0)
    sign = np.where(np.arange(40) % 2, 1.0, -1.0)[None]
    # |cos| is 0.1 everywhere, but half of the tokens pull inward and half outward.
    found = radial_fraction(
        bootstrap, Gradient(sign * 0.1 * 2.0 * 3.0, np.full((1, 40), 3.0)), norm
    )
    assert found["mean"][0]["value"] == pytest.approx(0.1)
    assert found["pooled"][0]["value"] == pytest.approx(0, abs=1e-12)
    # Half of the tokens have no gradient: they do not count as blind.
    some = np.where(np.arange(40) % 2, 3.0, 0.0)[None]
    found = radial_fraction(bootstrap, Gradient(0.1 * 2.0 * some, some), norm)
    assert found["mean"][0]["value"] == pytest.approx(0.1)
    assert found["pooled"][0]["value"] == pytest.approx(0.1 / np.sqrt(2))
    none = radial_fraction(bootstrap, Gradient(np.zeros((1, 40)), np.zeros((1, 40))), norm)
    assert none["mean"][0]["value"] is None
    assert none["pooled"][0]["value"] is None


def suite(trained, monkeypatch, model, **loss):
    monkeypatch.setattr(throughput, "REPEATS", 2)
    run = trained(model)
    changed = dataclasses.replace(run.run.loss, **loss)
    run = dataclasses.replace(run, run=dataclasses.replace(run.run, loss=changed))
    result = readout_suite(run)
    return run, json.loads(json.dumps(result, allow_nan=False))


def test_the_suite(trained, monkeypatch):
    model = family(readout_norm="every")
    run, found = suite(trained, monkeypatch, model, supervision="every")
    assert found["condition"] == {
        "supervision": "every", "loop_weights": [], "norm_penalty": 0.0, "readout_norm": "every",
        "state_norm": "none", "injection": "passthrough",
    }  # fmt: skip
    assert (found["trained_loops"], found["loops"], found["width"]) == (4, 8, 32)
    assert found["tokens"] == len(run.data.validation) - 1
    values = lambda rows: np.array([row["value"] for row in rows])
    assert len(found["norm"]["mean"]) == 9
    assert (values(found["norm"]["p99"]) >= values(found["norm"]["median"])).all()
    assert len(found["radial_fraction"]["immediate"]["mean"]) == 8
    assert (values(found["radial_fraction"]["immediate"]["mean"]) < 1e-6).all()
    # Later loops do see the scale, the loop of the trained depth's own readout does not.
    objective = values(found["radial_fraction"]["objective"]["mean"])
    assert objective.shape == (4,)
    assert objective[-1] < 1e-6 < 1e-3 < objective[0]
    np.testing.assert_allclose(values(found["perplexity"]), np.exp(values(found["loss"])))
    growth = np.diff(values(found["norm"]["mean"]))
    np.testing.assert_allclose(values(found["update"]["growth"]), growth, rtol=1e-3, atol=1e-4)
    assert found["probe"]["angle_slope"]["value"] == pytest.approx(-1, abs=0.4)
    for name in ("rescaled", "tangential"):
        clamp = found["clamp"][name]
        assert clamp["difference"][0]["value"] == pytest.approx(0, abs=1e-6)
        difference = values(clamp["loss"]) - values(found["loss"])
        np.testing.assert_allclose(values(clamp["difference"]), difference, atol=1e-6)
        assert np.abs(difference[1:]).max() > 1e-4
    assert found["throughput"]["depths"] == list(range(1, 9))
    assert all(rate > 0 for rate in found["throughput"]["tokens_per_second"])


def test_a_start_of_zeros_has_no_first_update(trained, monkeypatch):
    _, found = suite(trained, monkeypatch, elastic(recurrences=2, max_recurrences=2))
    assert found["norm"]["mean"][0]["value"] == 0
    assert found["update"]["radial"][0]["value"] is None
    assert found["update"]["radial"][1]["value"] is not None


def test_loops_reach_the_trained_depth():
    run = run_of(family())
    assert check_loops(run, 4) == 4
    with pytest.raises(UserError, match=r"recurrences = 3; allowed for the readout suite on .* 4"):
        check_loops(run, 3)


def test_conditions_name_what_varies():
    run = run_of(family(readout_norm="none", state_norm="every"))
    found = module.condition(run)
    assert (found["readout_norm"], found["state_norm"], found["supervision"]) == (
        "none", "every", "last",
    )  # fmt: skip
