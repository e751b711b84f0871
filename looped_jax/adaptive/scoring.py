"""Scoring text with every token at a depth of its own: one compiled program that saves the time.

The loop runs in stages. In the first one all tokens run, by the model's own recurrence: where none
exits this is full depth, bit for bit. Tokens that exit stay in place and keep their entries, until
few enough loop that those alone are packed into a smaller program (packed.py), and again into the
next smaller one. Sizes are static; which is left when is decided on the device, and the host waits
for nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.adaptive import packed
from looped_jax.adaptive.exits import Exits, look
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.model.cache import empty
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array

# Parts of all tokens that a packed stage has room for, and how much more than that a row may take.
STAGES = (0.7, 0.45, 0.2, 0.07)
ROW_SLACK = 1.5

BEYOND = -1  # in place of the exit loop, of what lies beyond a row's text


class Scored(NamedTuple):
    """What became of each token of (B, T): exit loop (0 beyond a row's text), loss, best token.

    Attributes:
      loops: int32.
      nats: cross-entropy of the target, float32.
      argmax: the most likely token, int32.
    """

    loops: Any
    nats: Any
    argmax: Any


class Running(NamedTuple):
    """Where the tokens of a stage stand after `done` loops; leaves begin with the tokens' axes."""

    done: Array
    state: Array
    exit: Array  # the loop that a token exited after, 0 while it loops
    memory: Any  # of the signal


@functools.lru_cache(maxsize=32)
def scorer(
    model: ModelConfig,
    looks: Looks,
    chunk: int,
    stages: tuple[float, ...] = STAGES,
    *,
    together: bool = False,
) -> Callable[..., Scored]:
    """The compiled (params, tokens (B, T + 1), length (B,), keys (B,), Exits, forced) -> Scored.

    Compiled once for each (B, T), whatever the threshold and the deepest loop. `length` is the
    number of each row's targets, `keys` are for a start from noise, `forced` int32 (B, T) are loops
    to exit after whatever the signal says (0: as it says), or None.

    Args:
      chunk: most tokens whose logits exist at one time.
      stages: parts of all tokens that packed stages have room for, falling.
      together: all tokens exit together, when the share `Exits.share` of them have settled.
    """

    def score(params, tokens_BT, length_B, keys_B, exits: Exits, forced_BT=None):
        frozen = FrozenModel(model, params)
        inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
        T = inputs_BT.shape[1]
        input_BTD = frozen.prelude(frozen.embed(inputs_BT))
        start = frozen.initial_state(input_BTD, keys_B=keys_B)
        memory = SIGNALS[looks.signal].init(exits.fitted, inputs_BT, start, model.vocab_size)
        is_text_BT = jnp.arange(T)[None] < length_B[:, None]
        exit_BT = jnp.where(is_text_BT, 0, BEYOND).astype(jnp.int32)
        running = Running(jnp.int32(0), start, exit_BT, memory)
        loop = _Loop(frozen, looks, exits)
        if together:
            state, loops_BT = loop.run_together(running, input_BTD)
        else:
            state, loops_BT = loop.run(running, input_BTD, forced_BT, stages)
        nats_BT, argmax_BT = _outputs(frozen, frozen.coda(state), targets_BT, chunk)
        return Scored(jnp.maximum(loops_BT, 0), nats_BT, argmax_BT)

    return jax.jit(score)


class _Loop:
    """The recurrences of a batch, until every token has exited."""

    def __init__(self, frozen: FrozenModel, looks: Looks, exits: Exits):
        self._frozen, self._looks, self._exits = frozen, looks, exits

    def run(
        self,
        running: Running,
        input_BTD: Array,
        forced_BT: Array | None,
        stages: tuple[float, ...],
    ) -> tuple[Array, Array]:
        """The states that tokens exited with, and their exit loops (B, T)."""
        B, T, _ = input_BTD.shape
        sizes = [
            (max(1, round(B * T * part)), min(T, max(1, round(T * part * ROW_SLACK))))
            for part in stages
        ]
        entries = empty(self._frozen.config, 1, B, T)["core"]
        carried = self._while(
            lambda count: ~_fits(count, sizes[0]),
            lambda carried: self._in_place(carried, input_BTD, forced_BT),
            (running, entries),
        )
        with nn.logical_axis_rules(()):  # places lie across rows, which devices may share
            for size, following in zip(sizes, [*sizes[1:], (0, 0)], strict=True):
                count = _count(carried[0].exit)
                carried = jax.lax.cond(
                    (count[0] > 0) & ~_fits(count, following),
                    lambda *carried, size=size, following=following: self._stage(
                        carried, input_BTD, forced_BT, size, following
                    ),
                    lambda *carried: carried,
                    *carried,
                )
        return carried[0].state, carried[0].exit

    def run_together(self, running: Running, input_BTD: Array) -> tuple[Array, Array]:
        """As `run`, for a rule with a share: one loop for all tokens."""
        total = _count(running.exit)[0]

        def goes_on(running: Running) -> Array:
            settled = total - _count(running.exit)[0]
            wanted = self._exits.share * total.astype(jnp.float32)
            return (settled.astype(jnp.float32) < wanted) & (running.done < self._exits.most)

        def loop(running: Running) -> Running:
            new = self._frozen.recur(running.state, input_BTD, running.done)
            looked = self._look(running, new, None)
            return looked._replace(state=new)

        ended = jax.lax.while_loop(goes_on, loop, running)
        return ended.state, jnp.where(running.exit == BEYOND, BEYOND, ended.done)

    def _while(self, goes_on, loop, carried):
        """Loops while tokens do and `goes_on(their count in the batch, in the fullest row)`."""

        def condition(carried):
            count = _count(carried[0].exit)
            return (count[0] > 0) & goes_on(count)

        return jax.lax.while_loop(condition, loop, carried)

    def _in_place(self, carried, input_BTD: Array, forced_BT: Array | None):
        """One loop in which exited tokens run with the others, to no effect."""
        running, entries = carried
        loops_BT = running.exit == 0
        context = packed.in_place(entries, loops_BT, self._frozen.config.attention)
        new, entries = self._frozen.recur(running.state, input_BTD, running.done, context)
        new = jnp.where(loops_BT[..., None], new, running.state)
        return self._look(running, new, forced_BT)._replace(state=new), entries

    def _stage(self, carried, input_BTD, forced_BT, size, following):
        """Loops of the tokens that are left, packed, until they fit the following stage."""
        running, entries = carried
        at = packed.places(running.exit == 0, *size)
        pack = lambda tree: jax.tree.map(at.pack, tree)
        input_1MD, forced_M = at.pack(input_BTD)[None], pack(forced_BT)
        in_list = Running(
            running.done,
            at.pack(running.state),
            jnp.where(at.is_taken_M, 0, BEYOND),
            pack(running.memory),
        )

        def count(in_list: Running) -> tuple[Array, Array]:
            in_row_B = jnp.sum((in_list.exit == 0)[at.place_BT] & at.loops_BT, axis=1)
            return jnp.sum(in_row_B), jnp.max(in_row_B)

        def goes_on(carried):
            left = count(carried[0])
            return (left[0] > 0) & ~_fits(left, following)

        def loop(carried):
            in_list, entries = carried
            loops_M = in_list.exit == 0
            context = packed.of_places(at, entries, loops_M)
            new_1MD, entries = self._frozen.recur(
                in_list.state[None], input_1MD, in_list.done, context
            )
            new_MD = jnp.where(loops_M[:, None], new_1MD[0], in_list.state)
            return self._look(in_list, new_MD, forced_M)._replace(state=new_MD), entries

        in_list, entries = jax.lax.while_loop(goes_on, loop, (in_list, entries))
        ended = Running(
            in_list.done,
            at.unpack(in_list.state, running.state),
            at.unpack(in_list.exit, running.exit),
            jax.tree.map(at.unpack, in_list.memory, running.memory),
        )
        return ended, entries

    def _look(self, running: Running, new: Array, forced: Array | None) -> Running:
        """Who exits after this loop; the state is still the one before it."""
        index = running.done + 1
        leaves, memory = look(
            self._frozen, self._looks, self._exits, running.state, new, running.memory, index
        )
        if forced is not None:
            given = index >= jnp.minimum(forced, self._exits.most)
            leaves = jnp.where(forced > 0, given, leaves)
        ends = (running.exit == 0) & leaves
        return Running(index, running.state, jnp.where(ends, index, running.exit), memory)


def _count(exit_BT: Array) -> tuple[Array, Array]:
    """Tokens that loop: in the batch, and in the fullest row."""
    in_row_B = jnp.sum(exit_BT == 0, axis=1)
    return jnp.sum(in_row_B), jnp.max(in_row_B)


def _fits(count: tuple[Array, Array], size: tuple[int, int]) -> Array:
    return (count[0] <= size[0]) & (count[1] <= size[1])


def _outputs(
    frozen: FrozenModel, h_BTD: Array, targets_BT: Array, chunk: int
) -> tuple[Array, Array]:
    """Cross-entropy of the targets in nats, and the most likely token, (B, T).

    A chunk holds every n-th token, so that tokens which lie spread over devices stay there.
    """
    B, T, D = h_BTD.shape
    chunks = -(-B * T // chunk)
    size = -(-B * T // chunks)
    missing = size * chunks - B * T
    h_CnD = jnp.pad(h_BTD.reshape(-1, D), ((0, missing), (0, 0))).reshape(size, chunks, D)
    y_Cn = jnp.pad(targets_BT.reshape(-1), (0, missing)).reshape(size, chunks)

    def of_chunk(n: Array) -> tuple[Array, Array]:
        h_CD, y_C = (jax.lax.dynamic_index_in_dim(x, n, 1, keepdims=False) for x in (h_CnD, y_Cn))
        logits_CV = frozen.readout(h_CD[None])[0]
        below_CV = logits_CV - jnp.max(logits_CV, axis=1, keepdims=True)
        target_C = jnp.take_along_axis(below_CV, y_C[:, None], axis=1)[:, 0]
        nats_C = jnp.log(jnp.sum(jnp.exp(below_CV), axis=1)) - target_C
        # The first of the largest as a plain minimum: argmax takes four times as long on CPUs.
        ids_1V = jnp.arange(below_CV.shape[1], dtype=jnp.int32)[None]
        argmax_C = jnp.min(jnp.where(below_CV == 0, ids_1V, ids_1V.size - 1), axis=1)
        return nats_C, argmax_C

    of_chunks = jax.lax.map(of_chunk, jnp.arange(chunks))
    nats_BT, argmax_BT = (x_nC.T.reshape(-1)[: B * T].reshape(B, T) for x_nC in of_chunks)
    return nats_BT, argmax_BT
