"""LoopedLM: embed -> prelude -> recurrence -> coda -> readout, each callable alone."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.model import recurrence
from looped_jax.model.attention import Context
from looped_jax.model.block import Angles, Recurrence
from looped_jax.model.config import ModelConfig
from looped_jax.model.layers import Kernel, RMSNorm, layer_stack, rotary_angles, run_stack

Array = jax.Array


class LoopedLM(nn.Module):
    """A looped language model. Tokens are int32 (B, T); activations are in the compute dtype.

    Parts with layers take a `Context` where tokens are no whole texts from their start, and then
    return (result, its memory at the end).

    `deterministic` turns dropout off (evaluation); training with dropout needs a "dropout" rng,
    and a model that starts from noise a "state" rng.
    """

    config: ModelConfig
    deterministic: bool = True

    def setup(self) -> None:
        c = self.config
        table = nn.initializers.normal(c.embedding_init_std)
        self._embedding = nn.Embed(
            c.vocab_rows,
            c.width,
            embedding_init=nn.with_logical_partitioning(table, ("vocab", "embed")),
            name="embed",
        )
        if c.positions == "learned":
            self._positions = nn.Embed(
                c.max_length,
                c.width,
                embedding_init=nn.with_logical_partitioning(table, ("positions", "embed")),
                name="positions",
            )
        if c.embedding_norm:
            self._embed_norm = RMSNorm(c.norm_epsilon, name="embed_norm")
        stack = lambda layers, name: layer_stack(
            c, layers, deterministic=self.deterministic, name=name
        )
        self._prelude = stack(c.prelude_layers, "prelude") if c.prelude_layers else None
        self._recurrence = Recurrence(c, self.deterministic)
        # The recurrence's parameters lie beside the prelude's and the coda's in the tree.
        nn.share_scope(self, self._recurrence)
        self._coda = stack(c.coda_layers, "coda") if c.coda_layers else None
        if c.readout_norm != "none" and not c.share_state_and_final_norm:
            self._final_norm = RMSNorm(c.norm_epsilon, name="final_norm")
        if not c.tied_head:
            init = nn.initializers.normal(c.head_init_std)
            self._head = Kernel((c.width, c.vocab_rows), init, ("embed", "vocab"), name="head")

    def embed(self, tokens_BT: Array, positions_BT: Array | None = None) -> Array:
        """Token (and learned position) embeddings (B, T, D) in the compute dtype.

        Positions are those of a text that begins here unless given, int32 (B or 1, T).

        Raises:
          ValueError: the sequence is longer than `max_length`.
        """
        c = self.config
        T = tokens_BT.shape[1]
        if c.max_length < T:
            raise ValueError(f"sequence of {T} tokens; allowed: model.max_length = {c.max_length}")
        # Whole rows on every device, as any other parameter that fsdp splits: looked up in pieces,
        # their gradient would be gathered from all sequences.
        table_VD = nn.with_logical_constraint(self._embedding.embedding, ("vocab", "width"))
        x_BTD = jnp.take(table_VD, tokens_BT, axis=0) * c.embedding_scale
        if c.positions == "learned":
            places = jnp.arange(T)[None] if positions_BT is None else positions_BT
            x_BTD = x_BTD + self._positions(places)
        if c.embedding_norm:
            x_BTD = self._embed_norm(x_BTD)
        x_BTD = x_BTD.astype(jnp.dtype(c.compute_dtype))
        return nn.with_logical_constraint(x_BTD, ("batch", "length", "width"))

    def angles(self, length: int, context: Context | None = None) -> Angles:
        """Rotary (cos, sin), (B or 1, T, 1, head_dim / 2); None with learned positions."""
        if self.config.positions == "learned":
            return None
        positions_BT = jnp.arange(length)[None] if context is None else context.positions_BT
        return rotary_angles(self.config, positions_BT)

    def prelude(self, x_BTD: Array, context: Context | None = None) -> Any:
        """e, what every recurrence sees."""
        angles = self.angles(x_BTD.shape[1], context)
        return run_stack(self._prelude, self.config.prelude_layers, x_BTD, angles, context)

    def initial_state(self, input_BTD: Array) -> Array:
        """h⁰: (B, T, D), or (K, B, T, D) with hyperconnections."""
        noise = self.config.initial_state == "noise"
        return self._recurrence.initial(input_BTD, self.make_rng("state") if noise else None)

    def inject(self, state: Array, input_BTD: Array, index: Array | int) -> Array:
        """What the core is given, (B, T, D), in recurrence `index`."""
        return self._recurrence.inject(state, input_BTD, jnp.asarray(index, jnp.int32))

    def core(self, x_BTD: Array, context: Context | None = None) -> Any:
        """The core's layers, (B, T, D)."""
        angles = self.angles(x_BTD.shape[1], context)
        return self._recurrence.core(x_BTD, angles, context)

    def absorb(self, state: Array, y_BTD: Array, index: Array | int) -> Array:
        """The state after recurrence `index`, from the one before it and the core's output."""
        return self._recurrence.absorb(state, y_BTD, jnp.asarray(index, jnp.int32))

    def recur(
        self, state: Array, input_BTD: Array, index: Array | int, context: Context | None = None
    ) -> Any:
        """The state after recurrence number `index` (from 0; a scalar, or (B,) per sequence)."""
        x_BTD = self.inject(state, input_BTD, index)
        if context is None:
            return self.absorb(state, self.core(x_BTD), index)
        y_BTD, memory = self.core(x_BTD, context)
        return self.absorb(state, y_BTD, index), memory

    def recur_all(self, state: Array, input_BTD: Array, recurrences: int | Array) -> Array:
        """The state after `recurrences` recurrences (int, traced int32 scalar, or int32 (B,)).

        Traced depths must lie in 1 to `max_recurrences` (and within the lane table).

        Raises:
          ValueError: an int depth below 1 or above the lane table.
        """
        c = self.config
        self._check_depth(recurrences)
        if self.is_initializing():
            return self.recur(state, input_BTD, 0)
        step, params, constants = self._pure_step(input_BTD.shape[1])
        capacity = recurrences if isinstance(recurrences, int) else c.max_recurrences
        inputs: tuple = (input_BTD,)
        depth: int | Array = recurrences
        if not isinstance(recurrences, int) and recurrences.ndim == 1:
            # All sequences finish together, so that a gradient window holds the last recurrences
            # of each; what is computed for one before its first recurrence is discarded.
            depth = jnp.max(recurrences)
            constants["first_B"] = depth - recurrences
            inputs = (input_BTD, state)
        return recurrence.loop(
            step, params, state, inputs, constants, depth,
            capacity=capacity, window=c.backprop_recurrences, step_recomputes=c.remat != "none",
        )  # fmt: skip

    def trajectory(self, state: Array, input_BTD: Array, recurrences: int) -> Array:
        """The states after every recurrence, (R, B, T, D) or (R, K, B, T, D)."""
        self._check_depth(recurrences)
        if self.is_initializing():
            return self.recur(state, input_BTD, 0)[None]
        step, params, constants = self._pure_step(input_BTD.shape[1])
        return recurrence.trajectory(step, params, state, (input_BTD,), constants, recurrences)

    def coda(self, state: Array, context: Context | None = None) -> Any:
        """h (B, T, D) after the coda's layers."""
        h_BTD = self._recurrence.read(state)
        angles = self.angles(h_BTD.shape[1], context)
        return run_stack(self._coda, self.config.coda_layers, h_BTD, angles, context)

    def readout_input(self, h_BTD: Array, *, last: bool = True) -> Array:
        """What the head multiplies: h, normalised where the readout normalises this loop."""
        c = self.config
        if c.readout_norm == "none" or (c.readout_norm == "last" and not last):
            return h_BTD
        norm = self._recurrence.state_norm if c.share_state_and_final_norm else self._final_norm
        return norm(h_BTD)

    def head_kernel(self) -> Array:
        """The unembedding (D, V), float32, without what fills the table up to `vocab_rows`."""
        c = self.config
        kernel = self._embedding.embedding.T if c.tied_head else self._head()
        return kernel[:, : c.vocab_size]

    def readout(self, h_BTD: Array, *, last: bool = True) -> Array:
        """Logits (B, T, V) in float32, softcapped as the config says."""
        c = self.config
        x_BTD = self.readout_input(h_BTD, last=last)
        kernel = self.head_kernel().astype(x_BTD.dtype)
        logits = jnp.matmul(x_BTD, kernel, preferred_element_type=jnp.float32)
        return c.softcap * jnp.tanh(logits / c.softcap) if c.softcap else logits

    def hidden(
        self,
        tokens_BT: Array,
        recurrences: int | Array | None = None,
        initial_state: Array | None = None,
    ) -> Array:
        """h (B, T, D) after the coda; `recurrences` None means the config's."""
        input_BTD = self.prelude(self.embed(tokens_BT))
        state = self.initial_state(input_BTD) if initial_state is None else initial_state
        depth = self.config.recurrences if recurrences is None else recurrences
        return self.coda(self.recur_all(state, input_BTD, depth))

    def __call__(
        self,
        tokens_BT: Array,
        recurrences: int | Array | None = None,
        initial_state: Array | None = None,
    ) -> Array:
        """Logits (B, T, V) in float32 after `recurrences` recurrences."""
        return self.readout(self.hidden(tokens_BT, recurrences, initial_state))

    def _check_depth(self, recurrences: int | Array) -> None:
        c = self.config
        if not isinstance(recurrences, int):
            return
        most = c.recurrences if c.injection == "hyperconnect" else None
        if recurrences < 1 or (most and recurrences > most):
            allowed = f"1 to {most} (rows of the lane table)" if most else "1 or more"
            raise ValueError(f"recurrences = {recurrences}; allowed: {allowed}")

    def _pure_step(self, length: int):
        """The recurrence as a pure function, its parameters, and its constants."""
        block = Recurrence(self.config, self.deterministic, parent=None)
        dropout = self.config.dropout > 0 and not self.deterministic
        constants: dict[str, Any] = {"angles": self.angles(length)}
        if dropout:
            constants["dropout"] = self.make_rng("dropout")

        def step(params, state, inputs, constants, index):
            rngs = {}
            if dropout:
                rngs["dropout"] = jax.random.fold_in(constants["dropout"], index)
            if "first_B" in constants:
                index = index - constants["first_B"]
                starts_B11 = jnp.expand_dims(index == 0, (-2, -1))
                state = jnp.where(starts_B11, inputs[1], state)
            return block.apply(
                {"params": params}, state, inputs[0], constants["angles"], index, rngs=rngs
            )

        names = ("core", "injection", "lanes", "state_norm")
        params = {k: v for k, v in self.variables["params"].items() if k in names}
        return step, nn.unbox(params), constants
