"""The jitted training step. Runs of one shape share it: rates, budget and seed are arguments."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import flax.linen as nn
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
from looped_jax.training.state import (
    TrainState,
    abstract_state,
    make_optimizer,
    make_schedule,
    state_shardings,
)

LEVEL = "xla_backend_optimization_level"

Metrics = dict[str, jax.Array]
Batch = dict[str, jax.Array]
Step = Callable[[TrainState, Batch, Schedule, np.uint32], tuple[TrainState, Metrics]]


def train_step(run: RunConfig, mesh: Mesh) -> Step:
    """The compiled step of a run: (state, batch, schedule, seed) -> (state, metrics).

    The batch is {"tokens": (B, T + 1)}, with "loop_targets" (B, T, R) where they are supervised.
    The state is donated. Metrics are float32 scalars on the device: the loss in nats, the global
    gradient norm, the recurrences run (their mean over the batch), the learning rate of every
    parameter group and parts of the objective.
    """
    return _compiled_step(
        run.model, run.loss, run.depth, run.optimizer.rule, run.data.microbatches, mesh
    )


@functools.lru_cache(maxsize=8)
def _compiled_step(
    model: ModelConfig,
    loss: LossConfig,
    depth: DepthConfig,
    rule: MuonHRule | AdamWRule,
    microbatches: int,
    mesh: Mesh,
) -> Step:
    optimizer = make_optimizer(rule)
    sampler = DepthSampler(depth)
    # Devices that draw by themselves would draw the same for every part of the batch.
    draws = model.dropout > 0 or model.initial_state == "noise"

    def step(state: TrainState, batch: Batch, schedule: Schedule, seed: jax.Array):
        index = state.optimizer.step
        recurrences: int | jax.Array = depth.minimum
        if depth.kind != "fixed":
            recurrences = sampler.sample(seed, index, batch["tokens"].shape[0])

        def gradients_of(params, loss, batch, recurrences, key):
            rngs = {"dropout": jax.random.fold_in(key, 0), "state": jax.random.fold_in(key, 1)}
            targets = batch.get("loop_targets")
            of_params = lambda p: objective(
                model, loss, p, batch["tokens"], recurrences, rngs, targets
            )
            (_, metrics), gradients = jax.value_and_grad(of_params, has_aux=True)(params)
            return gradients, metrics

        def gradients_of_batch(params, key, batch, recurrences, loss=loss):
            of_params = functools.partial(gradients_of, params, loss)
            return accumulate(of_params, batch, recurrences, key, microbatches)

        # As many logits exist at one time over all devices as on one.
        rows_loss = dataclasses.replace(loss, chunk=-(-loss.chunk // mesh.size))
        gradients_of_rows = functools.partial(gradients_of_batch, loss=rows_loss)

        key = jax.random.fold_in(jax.random.key(seed), index)
        if parallel.only_data_splits(mesh) and not draws:
            gradients, metrics = parallel.mean_over_data(
                mesh, gradients_of_rows, (state.params, key), (batch, recurrences)
            )
        else:
            gradients, metrics = gradients_of_batch(state.params, key, batch, recurrences)
        updates, new_optimizer = optimizer.update(
            gradients, state.optimizer, state.params, schedule=schedule
        )
        params = optax.apply_updates(state.params, updates)
        metrics["gradient_norm"] = optax.tree.norm(gradients)
        metrics["recurrences"] = jnp.mean(jnp.asarray(recurrences, jnp.float32))
        metrics |= {f"learning_rate/{group}": r for group, r in schedule.rates(index).items()}
        return TrainState(params, new_optimizer), metrics

    shardings: Any = state_shardings(model, optimizer, mesh)
    whole = parallel.replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(shardings, parallel.rows(mesh), whole, whole),
        out_shardings=(shardings, whole),
        donate_argnums=0,
        compiler_options=_compiler_options(mesh),
    )


def _compiler_options(mesh: Mesh) -> dict[str, int] | None:
    """LLVM's level 1 for a step on CPUs, unless XLA_FLAGS chooses one.

    It compiles in less time than XLA's own choice, and its code for small models is faster.
    """
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    return {LEVEL: 1} if is_cpu and LEVEL not in os.environ.get("XLA_FLAGS", "") else None


def accumulate(
    gradients_of: Callable[..., tuple[Any, Metrics]],
    batch: Batch,
    recurrences: int | jax.Array,
    key: jax.Array,
    microbatches: int,
) -> tuple[Any, Metrics]:
    """Gradients and metrics of a batch, taken from one part of it after the other.

    Equal to those of the whole batch, up to the order of sums: every part counts by its tokens,
    of which all have the same number, since all windows are full.

    Args:
      gradients_of: (batch, recurrences, key) -> (gradients, metrics), both means over tokens.
      recurrences: an int, or int32 () or (B,).
      key: the first part uses it as it is when it is the only one.
      microbatches: parts; divides B. A part holds every n-th sequence, so that sequences stay on
        their devices.
    """
    if microbatches == 1:
        return gradients_of(batch, recurrences, key)
    split = lambda x: jnp.moveaxis(x.reshape(-1, microbatches, *x.shape[1:]), 1, 0)
    per_sequence = isinstance(recurrences, jax.Array) and recurrences.ndim == 1
    depths = split(recurrences) if per_sequence else None

    def part(index: jax.Array, batch: Batch, depth_M: Any) -> tuple[Any, Metrics]:
        axes = ("batch", "length", "recurrences")
        batch = jax.tree.map(lambda x: nn.with_logical_constraint(x, axes[: x.ndim]), batch)
        depth = recurrences if depth_M is None else depth_M
        return gradients_of(batch, depth, jax.random.fold_in(key, index))

    parts = (jnp.arange(microbatches), jax.tree.map(split, batch), depths)
    sums = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(part, *jax.tree.map(lambda x: x[0], parts)),
    )
    add = lambda total, inputs: (jax.tree.map(jnp.add, total, part(*inputs)), None)
    total, _ = jax.lax.scan(add, sums, parts)
    return jax.tree.map(lambda x: x / microbatches, total)


def lower_step(run: RunConfig, mesh: Mesh) -> jax.stages.Lowered:
    """The step lowered for the run's shapes, nothing allocated: `.compile()` tells its memory."""
    optimizer = make_optimizer(run.optimizer.rule)
    B, T = run.data.batch_size, run.data.sequence_length
    shapes: dict[str, tuple[int, ...]] = {"tokens": (B, T + 1)}
    if run.loss.supervision == "by_loop":
        shapes["loop_targets"] = (B, T, run.model.recurrences)
    batch = {
        name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=parallel.rows(mesh))
        for name, shape in shapes.items()
    }
    # Outside the block: some of it computes, which the mesh of a topology cannot.
    state, schedule = abstract_state(run.model, optimizer, mesh), make_schedule(run)[0]
    step: Any = train_step(run, mesh)
    with parallel.active(mesh):
        return step.lower(state, batch, schedule, np.uint32(run.seed))
