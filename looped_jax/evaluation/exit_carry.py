"""Running a model in which tokens exit: what an exited token shows to those that go on.

carry             its last keys and values, in every layer, stay what others attend to. In causal
                  decoding with a cache that keeps the last entry this is what happens, and an
                  exited token costs nothing.
freeze_recompute  its state stays, and the block runs on it with the others in every later loop, so
                  that its keys and values follow those of the tokens that it attends to.
full_depth        others see it as if it went on; only its output is that of its exit loop. A bound
                  that no machine gains from, and what studies on recorded trajectories measure.

The output of a token is read from the state it exited with, through a coda in which all tokens show
the states they exited with.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.evaluation.policies import POLICIES, Policy
from looped_jax.evaluation.probe import Probe
from looped_jax.evaluation.trajectory import (
    applier,
    distributions,
    divergence,
    moved,
    over_tokens,
    unroll,
)
from looped_jax.model.config import ModelConfig
from looped_jax.model.layers import Attention, Layer

Array = jax.Array

CARRIES = ("carry", "freeze_recompute", "full_depth")


class Exits(NamedTuple):
    """What became of each token: exit loop int32 and nats float32 of its output, both (B, T)."""

    loop: Any
    nats: Any
    argmax: Any


@functools.lru_cache(maxsize=32)
def exit_scorer(
    model: ModelConfig, policy_name: str, carry: str, recurrences: int, chunk: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask, probe, threshold) -> (Exits, mask).

    Args:
      carry: "carry" or "freeze_recompute"; exits at full depth need no run of their own.
    """
    policy = POLICIES[policy_name]

    def score(params, tokens_BT, mask_BT, probe, threshold):
        inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
        exit_BT = None
        if policy.knows_future:
            exit_BT = _foreseen(model, params, policy, tokens_BT, recurrences, chunk, threshold)
        state, loop_BT = run_with_exits(
            model, params, inputs_BT, policy, probe, threshold, exit_BT,
            carry=carry, recurrences=recurrences, chunk=chunk,
        )  # fmt: skip
        h_BTD = applier(model, params)("coda", state)
        outputs = distributions(model, params, h_BTD[None], targets_BT, chunk)
        return Exits(loop_BT, outputs["nats"][0], outputs["argmax"][0]), mask_BT

    return jax.jit(score, out_shardings=parallel.replicated(mesh))


def run_with_exits(
    model: ModelConfig,
    params: Any,
    tokens_BT: Array,
    policy: Policy,
    probe: Probe,
    threshold: Array,
    exit_BT: Array | None,
    *,
    carry: str,
    recurrences: int,
    chunk: int,
) -> tuple[Array, Array]:
    """The state that each token exited with, and its exit loop (B, T).

    The loop ends when all have exited. `exit_BT` are loops to exit after, whatever the policy.
    """
    apply = applier(model, params)
    input_BTD = apply("prelude", apply("embed", tokens_BT))
    start = apply("initial_state", input_BTD)
    B, T, D = input_BTD.shape
    seen = {
        "change": jnp.zeros(start.shape, jnp.float32),
        "h": jnp.zeros(input_BTD.shape, input_BTD.dtype),
        "argmax": jnp.full((B, T), -1, jnp.int32),
        "run": jnp.zeros((B, T), jnp.float32),
    }
    # What attention sees of each token, in every layer of the block.
    shown = jnp.zeros((model.core_layers, B, T, D), input_BTD.dtype)

    def goes_on(carried):
        index, _, _, loop_BT, _ = carried
        return (index < recurrences) & jnp.any(loop_BT == 0)

    def loop(carried):
        index, state, shown, loop_BT, seen = carried
        exited_BT = loop_BT > 0
        if carry == "carry":
            new, shown = recur_showing(model, params, state, input_BTD, index, exited_BT, shown)
        else:
            new = apply("recur", state, input_BTD, index)
        new = jnp.where(_like_state(exited_BT, state), state, new)
        if exit_BT is not None:
            leaves_BT = index + 1 >= exit_BT
        else:
            signal_BT, seen = observe(model, params, policy.signal, probe, state, new, seen, chunk)
            leaves_BT = (signal_BT <= threshold) & (index + 1 >= policy.first_loop)
        leaves_BT = ~exited_BT & (leaves_BT | (index + 1 == recurrences))
        return index + 1, new, shown, jnp.where(leaves_BT, index + 1, loop_BT), seen

    carried = (jnp.int32(0), start, shown, jnp.zeros((B, T), jnp.int32), seen)
    _, state, _, loop_BT, _ = jax.lax.while_loop(goes_on, loop, carried)
    return state, loop_BT


def observe(
    model: ModelConfig,
    params: Any,
    signal: str,
    probe: Probe,
    old: Array,
    new: Array,
    seen: dict[str, Array],
    chunk: int,
) -> tuple[Array, dict[str, Array]]:
    """The number (B, T) that a policy looks at after a loop, and what the next one needs.

    Only what the signal needs is computed: a policy on the state reads no output.
    """
    if signal == "probe":
        return probe.logits(new), seen
    if signal in ("change", "second_order"):
        change, motion = moved(old, new, seen["change"])
        return motion[signal], seen | {"change": change}
    h_BTD = applier(model, params)("coda", new)
    if signal == "kl":
        pair = jnp.stack([seen["h"], h_BTD])

        def of_chunk(logits_of, _):
            log_q_CV, log_p_CV = (jax.nn.log_softmax(logits_of(i)) for i in (0, 1))
            return divergence(log_p_CV, log_q_CV)[None]

        kl_BT = over_tokens(model, params, pair, _no_targets(h_BTD), chunk, of_chunk)[0]
        return kl_BT, seen | {"h": h_BTD}
    outputs = distributions(model, params, h_BTD[None], _no_targets(h_BTD), chunk)
    if signal == "entropy":
        return outputs["entropy"][0], seen
    assert signal == "argmax_run", signal
    argmax_BT = outputs["argmax"][0]
    run_BT = jnp.where(argmax_BT == seen["argmax"], seen["run"] + 1, 0.0)
    return -run_BT, seen | {"argmax": argmax_BT, "run": run_BT}


def recur_showing(
    model: ModelConfig,
    params: Any,
    state: Array,
    input_BTD: Array,
    index: Array,
    exited_BT: Array,
    shown_LBTD: Array,
) -> tuple[Array, Array]:
    """One recurrence in which exited tokens show attention what they showed when they last ran.

    Keys and values are functions of the attention's input, so that is what is kept, a row for each
    of the L core layers: exited tokens get theirs from `shown_LBTD`. Their own new state means
    nothing.

    Returns:
      (state, what each token has shown now).
    """
    apply = applier(model, params)
    angles = apply("angles", input_BTD.shape[1])

    def layer(x_BTD, of_layer):
        layer_params, shown_BTD = of_layer
        seen = []

        def attention(next_fun, args, kwargs, context):
            if not isinstance(context.module, Attention):
                return next_fun(*args, **kwargs)
            seen.append(jnp.where(exited_BT[..., None], shown_BTD, args[0]))
            return next_fun(seen[0], *args[1:], **kwargs)

        with nn.intercept_methods(attention):
            y_BTD, _ = Layer(model, parent=None).apply({"params": layer_params}, x_BTD, angles)
        return y_BTD, seen[0]

    with nn.intercept_methods(replace_core(lambda x_BTD: x_BTD, norm=False)):
        x_BTD = apply("recur", state, input_BTD, index)
    y_BTD, shown_LBTD = jax.lax.scan(layer, x_BTD, (params["core"], shown_LBTD))
    with nn.intercept_methods(replace_core(lambda _: y_BTD, norm=True)):
        return apply("recur", state, input_BTD, index), shown_LBTD


def replace_core(function: Callable[[Array], Array], *, norm: bool) -> Callable[..., Any]:
    """An interceptor that runs `function` in place of each core layer, the state's norm or not.

    So the model itself says what its core is given (identity, no norm) and what becomes of what
    the core returns (a constant), whatever the injection.
    """

    def interceptor(next_fun, args, kwargs, context):
        if context.method_name == "__call__":
            if isinstance(context.module, Layer):
                return function(args[0]), None
            if context.module.name == "state_norm" and not norm:
                return args[0]
        return next_fun(*args, **kwargs)

    return interceptor


def _foreseen(
    model: ModelConfig,
    params: Any,
    policy: Policy,
    tokens_BT: Array,
    recurrences: int,
    chunk: int,
    threshold: Array,
) -> Array:
    """Exit loops (B, T) of a policy that knows the trajectory of full depth."""
    h_RBTD, _ = unroll(model, params, tokens_BT[:, :-1], recurrences)
    outputs = distributions(model, params, h_RBTD, tokens_BT[:, 1:], chunk)
    if policy.signal == "argmax_changes":
        differs_RBT = (outputs["argmax"] != outputs["argmax"][-1]).astype(jnp.float32)
    else:
        differs_RBT = outputs["kl_to_last"]
    # Large until the last loop at which it is above the threshold.
    ahead_RBT = jax.lax.cummax(differs_RBT, axis=0, reverse=True)
    may_RBT = (ahead_RBT <= threshold).at[-1].set(True)
    return 1 + jnp.argmax(may_RBT, axis=0).astype(jnp.int32)


def _like_state(mask_BT: Array, state: Array) -> Array:
    """A mask that broadcasts against a state (B, T, D) or (K, B, T, D)."""
    return mask_BT[..., None] if state.ndim == 3 else mask_BT[None, ..., None]


def _no_targets(h_BTD: Array) -> Array:
    return jnp.zeros(h_BTD.shape[:2], jnp.int32)
