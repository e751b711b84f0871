"""A model with its parameters, its parts callable one by one: for whoever uses and never trains it.

frozen = FrozenModel(config, params)
e = frozen.prelude(frozen.embed(tokens))
state = frozen.recur(frozen.initial_state(e), e, 0)
logits = frozen.readout(frozen.coda(state))
"""

import dataclasses
from typing import Any, overload

import jax
import jax.numpy as jnp

from looped_jax.model.attention import Context
from looped_jax.model.config import ModelConfig
from looped_jax.model.lm import LoopedLM

Array = jax.Array

# Folded into a row's key, so that the start from noise and the drawing of tokens do not share one.
_NOISE = 0x6E6F6973


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenModel:
    """The parts of a `LoopedLM`, which says what each computes.

    Parts with layers attend causally among the tokens that they are given, which begin a text. With
    a `Context` they attend as it says, and return the memory it ends with beside their result.
    """

    config: ModelConfig
    params: Any

    def embed(self, tokens_BT: Array, positions_BT: Array | None = None) -> Array:
        """(B, T, D); positions in the text are 0 to T − 1 unless given, int32 (B or 1, T)."""
        return self._apply("embed", tokens_BT, positions_BT)

    @overload
    def prelude(self, x_BTD: Array) -> Array: ...
    @overload
    def prelude(self, x_BTD: Array, context: Context) -> tuple[Array, Any]: ...
    def prelude(self, x_BTD, context=None):
        """e (B, T, D), what every recurrence sees."""
        return self._apply("prelude", x_BTD, context)

    def initial_state(
        self, input_BTD: Array, positions_BT: Array | None = None, keys_B: Array | None = None
    ) -> Array:
        """h⁰. A start from noise is drawn by the row's key and the token's position alone.

        Args:
          positions_BT: of the tokens in their texts; None for 0 to T − 1.
          keys_B: of the rows; None for the keys of seeds 0, 1, … as rows of a batch have them.
        """
        if self.config.initial_state != "noise":
            return self._apply("initial_state", input_BTD)
        B, T, _ = input_BTD.shape
        if positions_BT is None:
            positions_BT = jnp.arange(T)[None]
        if keys_B is None:
            keys_B = jax.vmap(jax.random.key)(jnp.arange(B, dtype=jnp.uint32))

        def draw(input_D: Array, key: Array, position: Array) -> Array:
            key = jax.random.fold_in(jax.random.fold_in(key, _NOISE), position)
            return self._apply("initial_state", input_D[None, None], rngs={"state": key})[0, 0]

        of_row = jax.vmap(draw, (0, None, 0))
        return jax.vmap(of_row)(input_BTD, keys_B, jnp.broadcast_to(positions_BT, (B, T)))

    def inject(self, state: Array, input_BTD: Array, index: Array | int) -> Array:
        """What recurrence `index` (from 0) gives to the core, (B, T, D)."""
        return self._apply("inject", state, input_BTD, index)

    @overload
    def core(self, x_BTD: Array) -> Array: ...
    @overload
    def core(self, x_BTD: Array, context: Context) -> tuple[Array, Any]: ...
    def core(self, x_BTD, context=None):
        """The core's layers, (B, T, D)."""
        return self._apply("core", x_BTD, context)

    def absorb(self, state: Array, y_BTD: Array, index: Array | int) -> Array:
        """The state after recurrence `index`, from the one before it and the core's output."""
        return self._apply("absorb", state, y_BTD, index)

    @overload
    def recur(self, state: Array, input_BTD: Array, index: Array | int) -> Array: ...
    @overload
    def recur(
        self, state: Array, input_BTD: Array, index: Array | int, context: Context
    ) -> tuple[Array, Any]: ...
    def recur(self, state, input_BTD, index, context=None):
        """The state after recurrence `index`: absorb ∘ core ∘ inject."""
        return self._apply("recur", state, input_BTD, index, context)

    @overload
    def coda(self, state: Array) -> Array: ...
    @overload
    def coda(self, state: Array, context: Context) -> tuple[Array, Any]: ...
    def coda(self, state, context=None):
        """h (B, T, D) after the coda's layers."""
        return self._apply("coda", state, context)

    def readout_input(self, h_BTD: Array, *, last: bool = True) -> Array:
        """What the head multiplies (B, T, D)."""
        return self._apply("readout_input", h_BTD, last=last)

    def head_kernel(self) -> Array:
        """The unembedding (D, V), float32."""
        return self._apply("head_kernel")

    def readout(self, h_BTD: Array, *, last: bool = True) -> Array:
        """Logits (B, T, V), float32."""
        return self._apply("readout", h_BTD, last=last)

    def hidden(self, tokens_BT: Array, recurrences: int | Array) -> Array:
        """h (B, T, D) after the coda of whole texts at one depth, an int or a traced int32."""
        input_BTD = self.prelude(self.embed(tokens_BT))
        state = self._apply("recur_all", self.initial_state(input_BTD), input_BTD, recurrences)
        return self.coda(state)

    def _apply(self, method: str, *args: Any, rngs: dict[str, Array] | None = None, **kwargs: Any):
        variables = {"params": self.params}
        return LoopedLM(self.config).apply(variables, *args, method=method, rngs=rngs, **kwargs)
