"""The compiled step: traced once, equal in parts, on every policy and dtype."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from looped_jax import parallel
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.model.boxes import unboxed
from looped_jax.model.lm import LoopedLM
from looped_jax.training import step as steps
from looped_jax.training.state import init_params, init_state, make_optimizer, make_schedule
from tests.tiny_runs import tiny_config

B, T = 8, 16
MESH = "data:1,fsdp:1,tensor:1"
SAMPLED = base.lognormal_poisson_depth(mean=2.0, sigma=0.5, minimum=1, maximum=4)


def configured(**changes):
    config = tiny_config("nowhere")
    config.model.max_recurrences = 4
    config.optimizer = base.adamw(
        rate=1e-2, decay=0.1, clip_norm=1.0, warmup_steps=0, warmdown_share=1.0
    )
    # So that Adam does not make a whole step of what rounding left of a gradient near zero.
    config.optimizer.eps = 1e-3
    with config.unlocked():
        for key, value in changes.items():
            config.update_from_flattened_dict({key.replace("__", "."): value})
    return resolve(config)


def tokens(count=1):
    draw = np.random.default_rng(0)
    return [draw.integers(0, 300, (B, T + 1)).astype(np.int32) for _ in range(count)]


def after(run, batches, mesh=MESH):
    """(parameters, metrics of every step) after a step on each of the batches."""
    on = parallel.mesh_from_text(mesh)
    with parallel.active(on):
        state = init_state(run.model, make_optimizer(run.optimizer.rule), on, run.seed)
        step, metrics = steps.train_step(run, on), []
        for batch in batches:
            placed = parallel.global_batch({"tokens": batch}, on)
            state, values = step(state, placed, make_schedule(run)[0], np.uint32(run.seed))
            metrics.append(jax.device_get(values))
        return jax.device_get(state.params), metrics


def assert_same(one, other, rtol=1e-4, atol=2e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


@pytest.fixture(scope="module")
def plain():
    return after(configured(), tokens(2))


def test_the_step_is_traced_once_for_all_depths_and_steps(monkeypatch):
    traced = []

    def counted(*args):
        traced.append(args)
        return objective(*args)

    objective = steps.objective
    monkeypatch.setattr(steps, "objective", counted)
    steps._compiled_step.cache_clear()
    _, metrics = after(configured(depth=SAMPLED), tokens(8))
    assert len({float(values["recurrences"]) for values in metrics}) > 1
    assert len(traced) == 1
    steps._compiled_step.cache_clear()


@pytest.mark.parametrize("mesh", [MESH, "data:2,fsdp:2,tensor:1"])
def test_microbatches_equal_the_whole_batch(plain, mesh):
    parts = after(configured(data__microbatches=2), tokens(2), mesh)
    assert_same(parts, plain)


def test_microbatches_share_out_the_depths_of_sequences():
    """The gradient of the parts is that of the batch also where each sequence has its depth."""
    depths = jnp.arange(1, B + 1)
    rows = jnp.arange(B * 3, dtype=jnp.float32).reshape(B, 3)

    def gradients_of(part, depth, key):
        weighted = part * depth[:, None].astype(jnp.float32)
        return {"w": jnp.mean(weighted)}, {"loss": jnp.mean(depth.astype(jnp.float32))}

    expected = gradients_of(rows, depths, None)
    for count in (2, 4):
        accumulated = steps.accumulate(gradients_of, rows, depths, jax.random.key(0), count)
        assert_same(accumulated, expected)


def test_microbatches_of_a_noisy_model_draw_their_own_noise():
    draws = lambda part, depth, key: ({}, {"noise": jax.random.uniform(key)})
    draw = functools.partial(steps.accumulate, draws, jnp.zeros((B, 2)), 1)
    one = draw(jax.random.key(0), 1)[1]["noise"]
    several = draw(jax.random.key(0), 4)[1]["noise"]
    assert one != several
    assert 0 < several < 1


@pytest.mark.parametrize("policy", ["layer", "products"])
def test_what_is_computed_again_is_the_same(plain, policy):
    assert_same(after(configured(model__remat=policy), tokens(2)), plain)


def test_remat_policies_keep_less():
    """A stack of layers keeps most without a policy, and with "layer" little but its inputs."""

    def kept(policy):
        model = LoopedLM(configured(model__remat=policy, model__prelude_layers=8).model)
        variables = {"params": unboxed(jax.eval_shape(lambda: init_params(model.config, 0)))}
        x_BTD = jax.ShapeDtypeStruct((B, T, 16), jnp.float32)
        forward = lambda v, x: model.apply(v, x, method="prelude")
        pullback = jax.eval_shape(lambda v, x: jax.vjp(forward, v, x)[1], variables, x_BTD)
        return sum(leaf.size for leaf in jax.tree.leaves(pullback))

    parameters = kept("layer") - 8 * B * T * 16
    # By layer and token, beside the input: q, k, v, what attention puts out (of width 16), and what
    # goes into the MLP's relu (64).
    assert kept("products") == pytest.approx(kept("layer") + 8 * B * T * (4 * 16 + 64), rel=1e-3)
    assert kept("none") - parameters > 1.5 * (kept("products") - parameters)


def test_an_unknown_policy_is_refused():
    with pytest.raises(UserError, match=r"model.remat = 'some'; allowed: none, layer, products"):
        configured(model__remat="some")


def test_bfloat16_computes_what_float32_does(plain):
    params, metrics = after(configured(model__compute_dtype="bfloat16"), tokens(2))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
    for values, expected in zip(metrics, plain[1], strict=True):
        assert values["loss"].dtype == np.float32
        assert values["loss"] == pytest.approx(expected["loss"], abs=0.02)
        assert values["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.05)
        assert values["loss"] != expected["loss"]


def test_the_level_of_llvm_is_chosen_on_cpus_unless_flags_do(monkeypatch):
    mesh = parallel.mesh_from_text(MESH)
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert steps._compiler_options(mesh) is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/nowhere")
    jitted = jax.jit(jnp.sin, compiler_options=steps._compiler_options(mesh))
    assert steps._compiler_options(mesh) == {steps.LEVEL: 1}
    assert jitted(jnp.float32(0.0)) == 0.0  # XLA knows the option
