"""The recurrences of a batch in which every token stops at a loop of its own, and saves the rest.

They run in stages. In the first one all tokens run, by the model's own recurrence: where none exits
this is full depth, bit for bit. Tokens that exit stay in place and keep their entries, until few
enough loop that those alone are packed into a smaller program (packed.py), and again into the next
smaller one. Sizes are static; which is left when is decided on the device, and the host waits for
nothing.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.adaptive import packed
from looped_jax.adaptive.exits import Exits, look
from looped_jax.adaptive.rule import Looks
from looped_jax.model.cache import KeysValues, empty
from looped_jax.model.frozen import FrozenModel

Array = jax.Array

ROW_SLACK = 1.5  # how much more than its part of a packed stage a row may take

BEYOND = -1  # in place of the exit loop, of what lies beyond a row's text


class Running(NamedTuple):
    """Where the tokens of a stage stand after `done` loops; leaves begin with the tokens' axes."""

    done: Array
    state: Array
    exit: Array  # the loop that a token exited after, 0 while it loops
    memory: Any  # of the signal


class Loop:
    """The recurrences of a batch, until every token has exited."""

    def __init__(self, frozen: FrozenModel, looks: Looks, exits: Exits):
        self._frozen, self._looks, self._exits = frozen, looks, exits

    def run(
        self,
        running: Running,
        input_BTD: Array,
        stages: tuple[float, ...],
        forced_BT: Array | None = None,
        recorded: KeysValues | None = None,
    ) -> tuple[Running, KeysValues | None]:
        """Loops until every token has exited; (tokens at their exits, what was recorded).

        Args:
          stages: parts of all tokens that packed stages have room for, falling; none: all stay in
            place.
          forced_BT: loops to exit after whatever the signal says, 0 as it says.
          recorded: room for the keys and values of each loop, (R, L, B, H, T, d), those of exited
            tokens as they were in their last; what lies beyond R stands in the last place.
        """
        B, T, _ = input_BTD.shape
        sizes = [
            (max(1, round(B * T * part)), min(T, max(1, round(T * part * ROW_SLACK))))
            for part in stages
        ]
        entries = empty(self._frozen.config, 1, B, T)["core"]
        first = sizes[0] if sizes else (0, 0)
        carried = self._while(
            lambda count: ~_fits(count, first),
            lambda carried: self._in_place(carried, input_BTD, forced_BT),
            (running, entries, recorded),
        )
        with nn.logical_axis_rules(()):  # places lie across rows, which devices may share
            for size, following in zip(sizes, [*sizes[1:], (0, 0)][: len(sizes)], strict=True):
                count = _count(carried[0].exit)
                carried = jax.lax.cond(
                    (count[0] > 0) & ~_fits(count, following),
                    lambda *carried, size=size, following=following: self._stage(
                        carried, input_BTD, forced_BT, size, following
                    ),
                    lambda *carried: carried,
                    *carried,
                )
        return carried[0], carried[2]

    def run_together(self, running: Running, input_BTD: Array) -> Running:
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
        return ended._replace(exit=jnp.where(running.exit == BEYOND, BEYOND, ended.done))

    def _while(self, goes_on, loop, carried):
        """Loops while tokens do and `goes_on(their count in the batch, in the fullest row)`."""

        def condition(carried):
            count = _count(carried[0].exit)
            return (count[0] > 0) & goes_on(count)

        return jax.lax.while_loop(condition, loop, carried)

    def _in_place(self, carried, input_BTD: Array, forced_BT: Array | None):
        """One loop in which exited tokens run with the others, to no effect."""
        running, entries, recorded = carried
        loops_BT = running.exit == 0
        context = packed.in_place(entries, loops_BT, self._frozen.config.attention)
        new, entries = self._frozen.recur(running.state, input_BTD, running.done, context)
        new = jnp.where(loops_BT[..., None], new, running.state)
        recorded = _record(recorded, entries, running.done)
        return self._look(running, new, forced_BT)._replace(state=new), entries, recorded

    def _stage(self, carried, input_BTD, forced_BT, size, following):
        """Loops of the tokens that are left, packed, until they fit the following stage."""
        running, entries, recorded = carried
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
            in_list, entries, recorded = carried
            loops_M = in_list.exit == 0
            context = packed.of_places(at, entries, loops_M)
            new_1MD, entries = self._frozen.recur(
                in_list.state[None], input_1MD, in_list.done, context
            )
            new_MD = jnp.where(loops_M[:, None], new_1MD[0], in_list.state)
            recorded = _record(recorded, entries, in_list.done)
            return self._look(in_list, new_MD, forced_M)._replace(state=new_MD), entries, recorded

        in_list, entries, recorded = jax.lax.while_loop(goes_on, loop, (in_list, entries, recorded))
        ended = Running(
            in_list.done,
            at.unpack(in_list.state, running.state),
            at.unpack(in_list.exit, running.exit),
            jax.tree.map(at.unpack, in_list.memory, running.memory),
        )
        return ended, entries, recorded

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


def _record(recorded: KeysValues | None, entries: KeysValues, done: Array) -> KeysValues | None:
    """What was recorded, and the entries of the loop after `done` others."""
    if recorded is None:
        return None

    def put(kept: Array, now: Array) -> Array:
        start = (jnp.minimum(done, kept.shape[0] - 1), 0, 0, 0, 0, 0)
        return jax.lax.dynamic_update_slice(kept, now, start)

    return jax.tree.map(put, recorded, entries)
