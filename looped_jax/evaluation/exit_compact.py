"""Scoring with exits in which exited tokens really leave: time is saved, not only loops.

The same result as `exit_carry` with "carry". Keys and values of all tokens lie in a cache; after
each loop the tokens that go on are packed together, and the block runs on as many places a sequence
as the fullest one needs, rounded up to one of a few bucket sizes that are compiled once each.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.evaluation.exit_carry import Exits, replace_core
from looped_jax.evaluation.policies import POLICIES
from looped_jax.evaluation.probe import Probe
from looped_jax.evaluation.trajectory import applier, distributions, divergence, moved, over_tokens
from looped_jax.model.config import ModelConfig
from looped_jax.model.layers import (
    Attention,
    Layer,
    matmul,
    queries_keys_values,
    rotary_angles,
)

Array = jax.Array

# Parts of a sequence's T tokens that the block is compiled for.
BUCKETS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)
SIGNALS = ("change", "second_order", "probe", "kl")


class Progress(NamedTuple):
    """Where all tokens stand between two loops; B sequences of T tokens, L core layers."""

    state: Array  # (B, T, D)
    keys: Array  # (L, B, T, H, d), rotated
    values: Array  # (L, B, T, H, d)
    exit_BT: Array  # the loop each token exited after, 0 while it goes on
    change: Array  # (B, T, D) float32, the last step of the state
    h: Array  # (B, T, D), what the coda made of the state, for policies that read the output


def score_compactly(
    model: ModelConfig,
    params: Any,
    tokens_BT: Array,
    policy: str,
    probe: Probe,
    threshold: float,
    *,
    recurrences: int,
    chunk: int,
) -> Exits:
    """Exit loop, loss and argmax of every token of tokens (B, T + 1).

    Args:
      policy: one that looks at "change", "second_order", "probe" or "kl".
      threshold: as policies.py counts it.

    Raises:
      ValueError: another policy, or hyperconnections.
    """
    signal = POLICIES[policy].signal
    if signal not in SIGNALS or model.lanes:
        raise ValueError(f"policy {policy!r} of {model.injection!r}; allowed: {SIGNALS}, no lanes")
    T = tokens_BT.shape[1] - 1
    sizes = sorted({max(1, round(T * part)) for part in BUCKETS})
    input_BTD, progress = _begin(model)(params, tokens_BT)
    fullest = T
    for index in range(recurrences):
        if fullest == 0:
            break
        places = next(size for size in sizes if size >= fullest)
        step = _step(model, signal, places, chunk)
        may_leave = index + 1 >= POLICIES[policy].first_loop
        bound = np.inf if index + 1 == recurrences else threshold if may_leave else -np.inf
        progress, count = step(
            params, input_BTD, progress, np.int32(index), probe, np.float32(bound)
        )
        fullest = int(count)
    nats_BT, argmax_BT = _finish(model, chunk)(params, progress.state, tokens_BT)
    return Exits(progress.exit_BT, nats_BT, argmax_BT)


@functools.lru_cache(maxsize=8)
def _begin(model: ModelConfig) -> Callable[..., Any]:
    """The compiled (params, tokens) -> (e, Progress before the first loop)."""

    def begin(params, tokens_BT):
        apply = applier(model, params)
        input_BTD = apply("prelude", apply("embed", tokens_BT[:, :-1]))
        B, T, _ = input_BTD.shape
        cache = jnp.zeros((model.core_layers, B, T, model.heads, model.head_dim), input_BTD.dtype)
        change = jnp.zeros(input_BTD.shape, jnp.float32)
        state = apply("initial_state", input_BTD)
        nobody_BT = jnp.zeros((B, T), jnp.int32)
        # Separate buffers: all of them are donated to the first step.
        h_BTD = jnp.zeros_like(input_BTD)
        return input_BTD, Progress(state, cache, cache + 0, nobody_BT, change, h_BTD)

    return jax.jit(begin)


@functools.lru_cache(maxsize=32)
def _step(model: ModelConfig, signal: str, places: int, chunk: int) -> Callable[..., Any]:
    """The compiled loop on `places` tokens a sequence: -> (Progress, tokens left in the fullest).

    A token leaves when the signal is at most the given bound.
    """

    def step(params, input_BTD, progress: Progress, index, probe: Probe, bound):
        B, T, _ = input_BTD.shape
        active_BT = progress.exit_BT == 0
        # Active tokens first, in their order; places left over point beyond the sequence.
        order_BA = jnp.argsort(~active_BT, axis=1, stable=True)[:, :places]
        is_active_BA = jnp.take_along_axis(active_BT, order_BA, axis=1)
        position_BA = jnp.where(is_active_BA, order_BA, T)
        row_B1 = jnp.arange(B)[:, None]
        packed = lambda x_BTD: jnp.take_along_axis(x_BTD, order_BA[..., None], axis=1)
        spread = lambda x_BTD, new: x_BTD.at[row_B1, position_BA].set(new, mode="drop")

        old_BAD = packed(progress.state)
        new_BAD, keys, values = _recur(
            model, params, old_BAD, packed(input_BTD), index, position_BA,
            progress.keys, progress.values,
        )  # fmt: skip
        progress = progress._replace(
            state=spread(progress.state, new_BAD), keys=keys, values=values
        )
        if signal == "probe":
            signal_BA = probe.logits(new_BAD)
        elif signal == "kl":
            h_BTD = applier(model, params)("coda", progress.state)
            signal_BA = _kl(model, params, packed(progress.h), packed(h_BTD), chunk)
            progress = progress._replace(h=h_BTD)
        else:
            change_BAD, motion = moved(old_BAD, new_BAD, packed(progress.change))
            signal_BA = motion[signal]
            progress = progress._replace(change=spread(progress.change, change_BAD))
        leaves_BA = is_active_BA & (signal_BA <= bound)
        exit_BA = jnp.where(leaves_BA, index + 1, 0)
        progress = progress._replace(exit_BT=spread(progress.exit_BT, exit_BA))
        return progress, jnp.max(jnp.sum(progress.exit_BT == 0, axis=1))

    return jax.jit(step, donate_argnums=2)


@functools.lru_cache(maxsize=8)
def _finish(model: ModelConfig, chunk: int) -> Callable[..., Any]:
    """The compiled (params, states at exit, tokens) -> (nats, argmax)."""

    def finish(params, state, tokens_BT):
        h_BTD = applier(model, params)("coda", state)
        outputs = distributions(model, params, h_BTD[None], tokens_BT[:, 1:], chunk)
        return outputs["nats"][0], outputs["argmax"][0]

    return jax.jit(finish)


def _recur(
    model: ModelConfig,
    params: Any,
    state_BAD: Array,
    input_BAD: Array,
    index: Array,
    position_BA: Array,
    keys_LBTHd: Array,
    values_LBTHd: Array,
) -> tuple[Array, Array, Array]:
    """One recurrence of packed tokens against the cache: (state, keys, values)."""
    apply = applier(model, params)
    angles = None if model.positions == "learned" else rotary_angles(model, position_BA)

    def layer(x_BAD, of_layer):
        layer_params, *cache = of_layer
        updated = []

        def attention(next_fun, args, kwargs, context):
            if not isinstance(context.module, Attention):
                return next_fun(*args, **kwargs)
            mixed_BAD, *now = _attend(
                model, layer_params["attn"], args[0], args[1], position_BA, *cache
            )
            updated.extend(now)
            return mixed_BAD

        with nn.intercept_methods(attention):
            y_BAD, _ = Layer(model, parent=None).apply({"params": layer_params}, x_BAD, angles)
        return y_BAD, tuple(updated)

    with nn.intercept_methods(replace_core(lambda x_BAD: x_BAD, norm=False)):
        x_BAD = apply("recur", state_BAD, input_BAD, index)
    layers = (params["core"], keys_LBTHd, values_LBTHd)
    y_BAD, (keys_LBTHd, values_LBTHd) = jax.lax.scan(layer, x_BAD, layers)
    with nn.intercept_methods(replace_core(lambda _: y_BAD, norm=True)):
        return apply("recur", state_BAD, input_BAD, index), keys_LBTHd, values_LBTHd


def _attend(
    model: ModelConfig,
    params: Any,
    x_BAD: Array,
    angles: tuple[Array, Array] | None,
    position_BA: Array,
    keys_BTHd: Array,
    values_BTHd: Array,
) -> tuple[Array, Array, Array]:
    """Attention of packed tokens to the cache, which has their own keys and values put in first."""
    c, dtype = model, jnp.dtype(model.compute_dtype)
    B, A, D = x_BAD.shape
    T = keys_BTHd.shape[1]
    qkv = matmul(x_BAD, params["qkv"]["kernel"].reshape(D, 3 * c.attention_width), dtype)
    q, k, v = queries_keys_values(c, qkv, params.get("qk_bias"), angles)
    put = lambda cache, new: cache.at[jnp.arange(B)[:, None], position_BA].set(new, mode="drop")
    keys_BTHd, values_BTHd = put(keys_BTHd, k), put(values_BTHd, v)
    scores_BHAT = jnp.einsum(
        "BAHd,BTHd->BHAT", q, keys_BTHd, preferred_element_type=jnp.float32
    ) * (c.head_dim**-0.5)
    visible_BAT = position_BA[..., None] >= jnp.arange(T)[None, None, :]
    scores_BHAT = jnp.where(visible_BAT[:, None], scores_BHAT, jnp.float32(-jnp.inf))
    weights_BHAT = jax.nn.softmax(scores_BHAT, axis=-1).astype(values_BTHd.dtype)
    mixed = jnp.einsum("BHAT,BTHd->BAHd", weights_BHAT, values_BTHd)
    out_AD = params["out"]["kernel"]
    return matmul(mixed.reshape(B, A, c.attention_width), out_AD, dtype), keys_BTHd, values_BTHd


def _kl(model: ModelConfig, params: Any, before: Array, now: Array, chunk: int) -> Array:
    """KL(now ‖ before) of packed tokens, (B, A)."""

    def of_chunk(logits_of, _):
        log_q_CV, log_p_CV = (jax.nn.log_softmax(logits_of(i)) for i in (0, 1))
        return divergence(log_p_CV, log_q_CV)[None]

    targets = jnp.zeros(now.shape[:2], jnp.int32)
    return over_tokens(model, params, jnp.stack([before, now]), targets, chunk, of_chunk)[0]
