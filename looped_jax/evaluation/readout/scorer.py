"""What the readout shows of every loop's state: losses, gradients by the state, interventions.

Loops count from 1 to R; h_0 is the start. Loop i is read as in training: a model whose readout
normalises only the last loop reads those before its trained depth K raw, and K and beyond
normalised. States of all loops are kept, logits of a chunk of tokens at a time.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.config import LossConfig
from looped_jax.evaluation.scored import radial
from looped_jax.evaluation.scored.radial import Update
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel
from looped_jax.training import losses

Array = jax.Array

# The state of the trained depth is scaled by these and recurred once more.
SCALE_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class Gradient(NamedTuple):
    """A derivative by the states, each field (loops, B, T).

    Attributes:
      along: ⟨∇_h L, h⟩.
      norm: ‖∇_h L‖.
    """

    along: Any
    norm: Any


class Readout(NamedTuple):
    """Measurements of every token; loops, then the batch.

    Attributes:
      nats: cross-entropy of the target if loop i were the last, (R, B, T).
      norm: ‖h_i‖ of loops 0 … R, (R + 1, B, T).
      update: from h_{i−1} to h_i, fields (R, B, T).
      immediate: gradient by h_i of the cross-entropy that is read from h_i itself, (R, B, T).
      objective: gradient by h_i of what training minimises, later loops included, (K, B, T).
      rescaled: nats if every state after loop 1 is brought to the norm it had there, (R, B, T).
      tangential: nats if updates after loop 1 lose their radial part, (R, B, T).
      probe: the update of c · h_K for the SCALE_FACTORS c, fields (factors, B, T).
    """

    nats: Any
    norm: Any
    update: Update
    immediate: Gradient
    objective: Gradient
    rescaled: Any
    tangential: Any
    probe: Update


@functools.lru_cache(maxsize=8)
def readout_scorer(
    model: ModelConfig, loss: LossConfig, recurrences: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled measurement (params, tokens (B, T + 1), mask) -> (Readout, mask).

    What comes back is whole on every process.

    Args:
      loss: the training loss, for the gradient of the objective; its chunk bounds the logits.
      recurrences: R, loops that are run; at least the K of the model.
    """

    def score(params, tokens_BT, mask_BT):
        loop = Loop(model, params, tokens_BT, mask_BT, loss.chunk)
        states_R = loop.states(recurrences, lambda _old, new, _size: new)
        before_R = jnp.concatenate([loop.start[None], states_R[:-1]])
        gradients_R, nats = loop.gradients(states_R)
        K = model.recurrences
        objective_K = objective_gradients(loop, loss, states_R[:K], gradients_R[:K])
        clamped = lambda _old, new, size: radial.rescaled(new, size)
        straight = lambda old, new, _size: radial.without_radial_update(old, new)
        norms = jax.vmap(lambda h: radial.norm(radial.full_precision(h)))
        measured = Readout(
            nats=nats,
            norm=jnp.concatenate([norms(loop.start[None]), norms(states_R)]),
            update=jax.lax.map(lambda pair: radial.update(*pair), (before_R, states_R)),
            immediate=_gradient(gradients_R, states_R),
            objective=_gradient(objective_K, states_R[:K]),
            rescaled=loop.nats(loop.states(recurrences, clamped)),
            tangential=loop.nats(loop.states(recurrences, straight)),
            probe=loop.probe(states_R[K - 1]),
        )
        return measured, mask_BT

    return jax.jit(score, out_shardings=parallel.replicated(mesh))


class Loop:
    """A frozen model on a batch: its loops, with what is done to the state between them."""

    def __init__(self, model: ModelConfig, params: Any, tokens_BT: Array, mask_BT: Array, chunk):
        self._model, self._chunk = model, chunk
        self._frozen = FrozenModel(model, params)
        self._targets_N = tokens_BT[:, 1:].reshape(-1)
        self._weights_N = mask_BT.reshape(-1).astype(jnp.float32)
        self._shape = mask_BT.shape
        self._input_BTD = self._frozen.prelude(self._frozen.embed(tokens_BT[:, :-1]))
        self._kernel_DV = self._frozen.head_kernel()
        self.start = self._frozen.initial_state(self._input_BTD)

    def recur(self, state: Array, index: Array | int) -> Array:
        return self._frozen.recur(state, self._input_BTD, index)

    def states(self, recurrences: int, between: Callable[[Array, Array, Array], Array]) -> Array:
        """States after loops 1 … R, stacked; `between(old, new, ‖h_1‖)` changes those after 1."""
        first = self.recur(self.start, 0)
        size_BT = radial.norm(radial.full_precision(first))

        def step(old, index):
            new = between(old, self.recur(old, index), size_BT)
            return new, new

        _, later = jax.lax.scan(step, first, jnp.arange(1, recurrences))
        return jnp.concatenate([first[None], later])

    def nats(self, states_R: Array) -> Array:
        """Cross-entropy of every loop and token (R, B, T)."""

        def read(state: Array, *, last: bool) -> Array:
            return losses.token_cross_entropy(
                self._readout_input(state, last=last), self._kernel_DV, self._targets_N,
                softcap=self._model.softcap or None, chunk=self._chunk,
            )  # fmt: skip

        return self._each_loop(read, states_R).reshape(-1, *self._shape)

    def gradients(self, states_R: Array) -> tuple[Array, Array]:
        """∂ (sum of a loop's cross-entropies) / ∂ its state, float32, and the nats (R, B, T)."""

        def read(state: Array, *, last: bool) -> tuple[Array, Array]:
            def total(state, weights_N):
                return losses.chunked_cross_entropy(
                    self._readout_input(state, last=last), self._kernel_DV, self._targets_N,
                    softcap=self._model.softcap or None, chunk=self._chunk,
                    weights_N=weights_N, reduction="sum",
                )  # fmt: skip

            # The derivative of a weighted sum by a token's weight is that token's cross-entropy.
            return jax.grad(total, argnums=(0, 1))(radial.full_precision(state), self._weights_N)

        gradients_R, nats_RN = self._each_loop(read, states_R)
        return gradients_R, nats_RN.reshape(-1, *self._shape)

    def probe(self, state: Array) -> Update:
        """The update of the same directions at other scales, fields (factors, B, T)."""

        def at(factor: Array) -> Update:
            scaled = (radial.full_precision(state) * factor).astype(state.dtype)
            return radial.update(scaled, self.recur(scaled, self._model.recurrences - 1))

        return jax.lax.map(at, jnp.asarray(SCALE_FACTORS, jnp.float32))

    def _readout_input(self, state: Array, *, last: bool) -> Array:
        """What the head multiplies (N, D), in float32 where the state is."""
        h_BTD = self._frozen.readout_input(self._frozen.coda(state), last=last)
        return h_BTD.reshape(-1, h_BTD.shape[-1])

    def _each_loop(self, read: Callable[..., Any], states_R: Array) -> Any:
        """`read(state, last=…)` of every row, stacked."""
        last = functools.partial(read, last=True)
        K = self._model.recurrences
        if self._model.readout_norm != "last" or K == 1:
            return jax.lax.map(last, states_R)
        before = jax.lax.map(functools.partial(read, last=False), states_R[: K - 1])
        rest = jax.lax.map(last, states_R[K - 1 :])
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), before, rest)


def objective_gradients(loop: Loop, loss: LossConfig, states_K: Array, direct_K: Array) -> Array:
    """∂ (tokens x objective) / ∂ h_i of loops 1 … K, through all later loops.

    Args:
      states_K: the states after each loop of the trained depth.
      direct_K: the gradients of each loop's own cross-entropy, summed over tokens.
    """
    K = states_K.shape[0]
    weights = loss.loop_weights or (1.0 / K,) * K
    if loss.supervision == "last":
        weights = (*(0.0,) * (K - 1), 1.0)
    weights_K = jnp.asarray(weights, jnp.float32).reshape(-1, *(1,) * (states_K.ndim - 1))
    own_K = weights_K * direct_K
    if loss.norm_penalty:
        h_K = radial.full_precision(states_K)
        tokens = h_K.shape[-3] * h_K.shape[-2]
        own_K = own_K + (2.0 * loss.norm_penalty * tokens / h_K.size) * h_K

    def back(after: Array, this: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        state, own, index = this
        _, pull = jax.vjp(lambda h: loop.recur(h, index), state)
        gradient = own + pull(after.astype(state.dtype))[0].astype(jnp.float32)
        return gradient, gradient

    earlier = (states_K[:-1], own_K[:-1], jnp.arange(1, K))
    _, gradients = jax.lax.scan(back, own_K[-1], earlier, reverse=True)
    return jnp.concatenate([gradients, own_K[-1:]])


def _gradient(gradients_R: Array, states_R: Array) -> Gradient:
    """Its size, and its part along the state times the state's size."""

    def of_loop(pair: tuple[Array, Array]) -> Gradient:
        gradient, state = pair
        along = radial.inner(gradient, radial.full_precision(state))
        return Gradient(along, radial.norm(gradient))

    return jax.lax.map(of_loop, (gradients_R, states_R))
