"""The training state: parameters and optimiser state, made sharded, and its shape alone."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.config import AdamWRule, MuonHConfig, MuonHRule, RunConfig
from looped_jax.model.boxes import unboxed
from looped_jax.model.config import ModelConfig
from looped_jax.model.lm import LoopedLM
from looped_jax.training import optimizer as optimizers


class TrainState(flax.struct.PyTreeNode):
    """What a step changes. `optimizer.step` counts the updates done."""

    params: Any
    optimizer: optimizers.OptimizerState


@functools.cache
def make_optimizer(rule: MuonHRule | AdamWRule) -> optax.GradientTransformationExtraArgs:
    """The optimiser of a config's rule; rates and schedule are given to its update."""
    if isinstance(rule, MuonHRule):
        return optimizers.muonh_adamw(**rule._asdict())
    return optimizers.adamw(**rule._asdict())


def make_schedule(run: RunConfig) -> tuple[optimizers.Schedule, str]:
    """The run's learning rates as data, and a table of how they came about."""
    config = run.optimizer
    if isinstance(config, MuonHConfig):
        transferred = config.transfer.scale(
            dataclasses.asdict(config.rates),
            d_model=run.model.width,
            batch_tokens=run.batch_tokens,
            tokens=run.steps * run.batch_tokens,
        )
        rates, table = transferred.rates, transferred.table()
    else:
        rates, table = {"all": config.rate}, f"learning rate {config.rate:g} for all parameters"
    schedule = optimizers.Schedule.of(
        total_steps=run.steps,
        warmup_steps=config.warmup_steps,
        warmdown_share=config.warmdown_share,
        final_fraction=config.final_fraction,
        peak_rates=rates,
    )
    return schedule, table


def init_params(model: ModelConfig, seed: int | jax.Array) -> Any:
    """Parameters with their logical axis names, as `seed` draws them."""
    rngs = {"params": jax.random.key(seed), "state": jax.random.key(seed)}
    return LoopedLM(model).init(rngs, jnp.zeros((1, 1), jnp.int32))["params"]


def state_shardings(
    model: ModelConfig, optimizer: optax.GradientTransformationExtraArgs, mesh: Mesh
) -> TrainState:
    """A TrainState of shardings: moments lie where their parameters lie."""
    boxed, of_params = _boxed_params(model, mesh)
    params = unboxed(boxed)
    of_optimizer = optimizers.match_parameters(
        jax.eval_shape(optimizer.init, params), params, of_params, parallel.replicated(mesh)
    )
    return TrainState(of_params, of_optimizer)


def init_state(
    model: ModelConfig, optimizer: optax.GradientTransformationExtraArgs, mesh: Mesh, seed: int
) -> TrainState:
    """A fresh state, each device making its own part; the same numbers on every mesh."""
    return _compiled_init(model, optimizer, mesh)(np.uint32(seed))


@functools.lru_cache(maxsize=8)
def _compiled_init(
    model: ModelConfig, optimizer: optax.GradientTransformationExtraArgs, mesh: Mesh
) -> Callable[[np.uint32], TrainState]:
    def init(seed: jax.Array) -> TrainState:
        params = unboxed(init_params(model, seed))
        return TrainState(params, optimizer.init(params))

    return jax.jit(init, out_shardings=state_shardings(model, optimizer, mesh))


def abstract_state(
    model: ModelConfig, optimizer: optax.GradientTransformationExtraArgs, mesh: Mesh
) -> TrainState:
    """Shapes, dtypes and shardings of the state, nothing allocated: what a restore aims at."""
    params = unboxed(jax.eval_shape(lambda: init_params(model, 0)))
    state = TrainState(params, jax.eval_shape(optimizer.init, params))
    return jax.tree.map(_placed, state, state_shardings(model, optimizer, mesh))


def abstract_params(model: ModelConfig, mesh: Mesh) -> Any:
    """Shapes, dtypes and shardings of the parameters alone, for evaluation."""
    boxed, shardings = _boxed_params(model, mesh)
    return jax.tree.map(_placed, unboxed(boxed), shardings)


def _boxed_params(model: ModelConfig, mesh: Mesh) -> tuple[Any, Any]:
    """Abstract parameters with their logical axes, and their shardings.

    Raises:
      UserError: the mesh does not divide what it would split.
    """
    parallel.check_sizes(
        mesh,
        {
            "model.heads": ("heads", model.heads),
            "model.mlp_hidden": ("mlp", model.mlp_hidden),
            "model.width": ("embed", model.width),
            "model.vocab_size, filled up to model.vocab_multiple,": ("vocab", model.vocab_rows),
        },
    )
    boxed = jax.eval_shape(lambda: init_params(model, 0))
    return boxed, parallel.parameter_shardings(boxed, mesh)


def _placed(x: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
