"""The signals of every token after every loop of full depth, to choose thresholds by."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.evaluation.exits.probe import features
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel


@functools.lru_cache(maxsize=8)
def signal_recorder(
    model: ModelConfig, signals: tuple[str, ...], recurrences: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask, probe) -> {signal: (R, B, T)}, mask.

    Signals of the state see lanes beside each other. Infinite where one has no meaning yet.
    """

    def record(params, tokens_BT, mask_BT, probe):
        frozen, inputs_BT = FrozenModel(model, params), tokens_BT[:, :-1]
        input_BTD = frozen.prelude(frozen.embed(inputs_BT))
        start = frozen.initial_state(input_BTD)
        fitted = {"probe": probe}
        memories = {
            name: SIGNALS[name].init(fitted.get(name), inputs_BT, features(start), model.vocab_size)
            for name in signals
        }

        def loop(carried, index):
            state, memories = carried
            new = frozen.recur(state, input_BTD, index)
            values, kept = {}, {}
            for name in signals:
                signal = SIGNALS[name]
                value, kept[name] = signal.step(
                    frozen.readout, fitted.get(name), features(state), features(new), memories[name]
                )
                values[name] = jnp.where(index + 1 < signal.first, jnp.inf, value)
            return (new, kept), values

        loops = jnp.arange(recurrences, dtype=jnp.int32)
        return jax.lax.scan(loop, (start, memories), loops)[1], mask_BT

    return jax.jit(record, out_shardings=parallel.replicated(mesh))
