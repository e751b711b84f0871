"""The jitted training step. Runs of one shape share it: rates, budget and seed are arguments."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.config import AdamWRule, LossConfig, MuonHRule, RunConfig
from looped_jax.model.config import ModelConfig
from looped_jax.training.depth import DepthConfig, DepthSampler
from looped_jax.training.objective import objective
from looped_jax.training.optimizer import Schedule
from looped_jax.training.state import TrainState, make_optimizer, state_shardings

Metrics = dict[str, jax.Array]
Step = Callable[[TrainState, jax.Array, Schedule, np.uint32], tuple[TrainState, Metrics]]


def train_step(run: RunConfig, mesh: Mesh) -> Step:
    """The compiled step of a run: (state, tokens (B, T + 1), schedule, seed) -> (state, metrics).

    The state is donated. Metrics are float32 scalars on the device: the loss in nats, the global
    gradient norm, the recurrences run (their mean over the batch) and parts of the objective.
    """
    return _compiled_step(run.model, run.loss, run.depth, run.optimizer.rule, mesh)


@functools.lru_cache(maxsize=8)
def _compiled_step(
    model: ModelConfig,
    loss: LossConfig,
    depth: DepthConfig,
    rule: MuonHRule | AdamWRule,
    mesh: Mesh,
) -> Step:
    optimizer = make_optimizer(rule)
    sampler = DepthSampler(depth)

    def step(state: TrainState, tokens_BT: jax.Array, schedule: Schedule, seed: jax.Array):
        index = state.optimizer.step
        key = jax.random.fold_in(jax.random.key(seed), index)
        rngs = {"dropout": jax.random.fold_in(key, 0), "state": jax.random.fold_in(key, 1)}
        recurrences: int | jax.Array = depth.minimum
        if depth.kind != "fixed":
            recurrences = sampler.sample(seed, index, tokens_BT.shape[0])
        of_params = lambda p: objective(model, loss, p, tokens_BT, recurrences, rngs)
        (_, metrics), gradients = jax.value_and_grad(of_params, has_aux=True)(state.params)
        updates, new_optimizer = optimizer.update(
            gradients, state.optimizer, state.params, schedule=schedule
        )
        params = optax.apply_updates(state.params, updates)
        metrics["gradient_norm"] = optax.tree.norm(gradients)
        metrics["recurrences"] = jnp.mean(jnp.asarray(recurrences, jnp.float32))
        return TrainState(params, new_optimizer), metrics

    shardings: Any = state_shardings(model, optimizer, mesh)
    whole = parallel.replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(shardings, parallel.rows(mesh), whole, whole),
        out_shardings=(shardings, whole),
        donate_argnums=0,
    )
