"""The numbers that say whether a token has settled; small ones let it exit.

A signal looks at a token's own states before and after a loop, and at the head on them; never
through a layer that attends, so it is the same when all tokens of a text loop together and when
earlier ones have long finished. States are (…, D) in any layout, values (…).

A new signal is a step function and a row of SIGNALS. What it has to remember from loop to loop
travels with the token: a tree of arrays with the token's axes in front.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.model.accounting import forward_flops_per_token
from looped_jax.model.config import ModelConfig

Array = jax.Array
Memory = Any
# (…, D) -> logits (…, V): the readout's norm and the head, without the coda.
Readout = Callable[[Array], Array]


class Signal(NamedTuple):
    """One number of a token after a loop.

    Attributes:
      about: what it says, in a line.
      init: (fitted, tokens (…), state (…, D), V) -> what it remembers before the first loop.
      step: (readout, fitted, old (…, D), new (…, D), memory) -> (value (…) float32, memory).
      flops: forward FLOPs of one look at one token (multiply-adds as 2, exponentials as 1).
      first: the first loop after which it has a meaning.
      is_fitted: whether it needs numbers fitted on text, `fitted`; the others are given None.
    """

    about: str
    init: Callable[[Any, Array, Array, int], Memory]
    step: Callable[[Readout, Any, Array, Array, Memory], tuple[Array, Memory]]
    flops: Callable[[ModelConfig], float]
    first: int = 1
    is_fitted: bool = False


class Probe(NamedTuple):
    """logit = Σ h · weights + bias over the width, float32."""

    weights: Any  # (D,)
    bias: Any  # ()


def unit(state: Array) -> Array:
    """h / ‖h‖ in float32, zero for a state that is zero."""
    x = state.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), -1, keepdims=True) + 1e-20)


def remember_nothing(_fitted: Any, _tokens: Array, _state: Array, _vocab_size: int) -> Memory:
    return ()


def change(_readout: Readout, _fitted: Any, old: Array, new: Array, memory: Memory):
    """‖û_i − û_{i−1}‖ of the states' directions û = h / ‖h‖: 0 to 2, blind to the state's scale."""
    return _length(unit(new) - unit(old)), memory


def remember_step(_fitted: Any, _tokens: Array, state: Array, _vocab_size: int) -> Memory:
    return jnp.zeros(state.shape, jnp.float32)


def acceleration(_readout: Readout, _fitted: Any, old: Array, new: Array, before: Memory):
    """‖(û_i − û_{i−1}) − (û_{i−1} − û_{i−2})‖: how the steps themselves change."""
    step = unit(new) - unit(old)
    return _length(step - before), step


def probe(_readout: Readout, fitted: Probe, _old: Array, new: Array, memory: Memory):
    """A linear map of the state: the log odds that the most likely token still changes."""
    return jnp.einsum("...D,D->...", new.astype(jnp.float32), fitted.weights) + fitted.bias, memory


def remember_output(_fitted: Any, tokens: Array, _state: Array, vocab_size: int) -> Memory:
    return jnp.zeros((*tokens.shape, vocab_size), jnp.float32)


def head_divergence(readout: Readout, _fitted: Any, _old: Array, new: Array, log_q: Memory):
    """KL(p_i ‖ p_{i−1}) in nats of what the head makes of the states, without the coda.

    The log-probabilities of the loop before are kept, so a look takes one head.
    """
    log_p = jax.nn.log_softmax(readout(new))
    return divergence(log_p, log_q), log_p


def expect_loops(loops_V: Array, tokens: Array, _state: Array, _vocab_size: int) -> Memory:
    return {"expected": loops_V[tokens], "done": jnp.zeros(tokens.shape, jnp.float32)}


def expected_over_done(_readout: Readout, _fitted: Any, _old: Array, _new: Array, memory: Memory):
    """Loops that tokens of this id took in the mean, over the loops done: 1 when they are equal."""
    done = memory["done"] + 1
    return memory["expected"] / done, memory | {"done": done}


SIGNALS = {
    "change": Signal(
        "the direction of the state has settled",
        remember_nothing, change, lambda model: 8.0 * model.width,
    ),
    "accel": Signal(
        "the steps of the state have settled (arXiv:2509.23314)",
        remember_step, acceleration, lambda model: 9.0 * model.width, first=2,
    ),
    "probe": Signal(
        "a linear probe on the state says that the most likely token will not change",
        remember_nothing, probe, lambda model: 2.0 * model.width, is_fitted=True,
    ),
    "head_kl": Signal(
        "what the head makes of the state has settled, KL(new ‖ previous) in nats",
        remember_output, head_divergence,
        lambda model: (2.0 * model.width + 24.0) * model.vocab_size, first=2,
    ),
    "prior": Signal(
        "the token has done as many loops as tokens of its id take, over the threshold",
        expect_loops, expected_over_done, lambda model: 1.0, is_fitted=True,
    ),
}  # fmt: skip


def flops_with_exits(model: ModelConfig, length: int, loops: float, signal: str) -> float:
    """Forward FLOPs of a token that loops so often, with a look at its signal after every loop.

    Args:
      length: tokens of a text, which attention is counted for.
      loops: of a token, or the mean of many.
    """
    return forward_flops_per_token(model, length, loops) + loops * SIGNALS[signal].flops(model)


def divergence(log_p: Array, log_q: Array) -> Array:
    """KL(p ‖ q) in nats over the last axis, from log-probabilities; exact for tiny differences.

    Σ p d with d = log p − log q loses everything below 1e-7 to float32, since positive and negative
    terms cancel. With Σ p = Σ q it equals Σ q (d eᵈ − eᵈ + 1), whose terms are all ≥ 0.
    """
    p, q, d = jnp.exp(log_p), jnp.exp(log_q), log_p - log_q
    series = q * jnp.square(d) * (1 / 2 + d * (1 / 3 + d * (1 / 8 + d / 30)))
    return jnp.sum(jnp.where(jnp.abs(d) < 0.05, series, p * d - p + q), -1)


def _length(x: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), -1))
