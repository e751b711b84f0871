"""Decoding in which every token loops as long as it needs: slots, each at a loop of its own.

Three verbs, as serving engines have them:

prefill   prompts -> Prefix: what attention will see of them, every token at its own exit
          (prefix.py).
insert    a row of a Prefix into a free slot.
generate  runs all slots for a number of ticks and returns the tokens they have drawn.

A tick is one recurrence of all slots (steps.py). A slot whose token has exited waits until a few
have; then a boundary takes them through coda, head, the draw of a token, embedding and prelude. A
query at loop r sees of every token the keys and values of loop min(r, its exit), as in scoring: at
the boundary a token's last entries are copied to the deeper loops. With a cache of one recurrence a
token's entries are those of the last loop it ran, which is another function.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.prefix import Prefix
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.adaptive.steps import (
    EXITED,
    IDLE,
    LOOPING,
    Choose,
    Emitted,
    Slots,
    Steps,
    nothing_emitted,
)
from looped_jax.model.cache import empty
from looped_jax.model.config import ModelConfig

# Tokens that one call of `generate` can return, in multiples of S.
EMITTED_PER_SLOT = 16


@functools.lru_cache(maxsize=32)
def insert(model: ModelConfig) -> Callable[..., Slots]:
    """The compiled (Slots, Prefix, row, slot, request, last_position, key) -> Slots.

    Row number `row` of the prefix goes into slot number `slot`; all numbers are traced, and the
    given slots are used up.
    """

    def run(slots: Slots, prefix: Prefix, row, slot, request, last_position, key):
        put = lambda field, value: field.at[slot].set(value)
        of_row = lambda field, rows: put(field, rows[row])
        stacks = jax.tree.map(
            lambda entries, rows: jax.lax.dynamic_update_slice(
                entries, jax.lax.dynamic_slice_in_dim(rows, row, 1, axis=2), (0, 0, slot, 0, 0, 0)
            ),
            slots.stacks, prefix.stacks,
        )  # fmt: skip
        return Slots(
            status=put(slots.status, LOOPING),
            request=put(slots.request, request),
            position=of_row(slots.position, prefix.position),
            last_position=put(slots.last_position, last_position),
            loop=put(slots.loop, 0),
            key=put(slots.key, key),
            state=of_row(slots.state, prefix.state),
            input=of_row(slots.input, prefix.input),
            memory=jax.tree.map(of_row, slots.memory, prefix.memory),
            stacks=stacks,
        )

    return jax.jit(run, donate_argnums=0)


@functools.lru_cache(maxsize=32)
def generate(
    model: ModelConfig, looks: Looks, boundary: int, choose: Choose, end_of_text: int
) -> Callable[..., tuple[Slots, Emitted]]:
    """The compiled (params, Slots, ticks, idle, keep (S,), Exits, knobs) -> (Slots, Emitted).

    Runs for `ticks`, until no slot is busy, or until `idle` slots are idle; the given slots are
    used up. Slots outside `keep` (bool) are made idle first, whatever they held.

    Args:
      boundary: C, tokens that go through coda and head together; 1 to S.
      choose: draws the tokens.
      end_of_text: id after which a request ends.
    """
    steps = Steps(model, looks, boundary, choose, end_of_text)

    @nn.logical_axis_rules(())
    def run(params, slots: Slots, ticks, idle, keep_S, exits: Exits, knobs: Any):
        S = slots.status.shape[0]
        room = EMITTED_PER_SLOT * S

        def goes_on(carried):
            slots, emitted = carried
            is_busy = jnp.any(slots.status != IDLE)
            is_wanted = (emitted.ticks < ticks) & (jnp.sum(slots.status == IDLE) < idle)
            return is_busy & is_wanted & (emitted.filled + boundary <= room)

        def waits(carried):
            slots, emitted = carried
            exited, busy = jnp.sum(slots.status == EXITED), jnp.sum(slots.status != IDLE)
            return (exited < jnp.minimum(boundary, busy)) & (emitted.ticks < ticks)

        def tick(carried):
            slots, emitted = carried
            looping = jnp.sum(slots.status == LOOPING)
            emitted = emitted._replace(ticks=emitted.ticks + 1, busy=emitted.busy + looping)
            return steps.tick(params, slots, exits), emitted

        def round_(carried):
            slots, emitted = jax.lax.while_loop(waits, tick, carried)
            return steps.boundary(params, slots, emitted, exits, knobs)

        slots = slots._replace(
            status=jnp.where(keep_S, slots.status, IDLE),
            request=jnp.where(keep_S, slots.request, -1),
        )
        return jax.lax.while_loop(goes_on, round_, (slots, nothing_emitted(room)))

    return jax.jit(run, donate_argnums=1)


def idle_slots(
    model: ModelConfig, looks: Looks, slots: int, kept: int, capacity: int, fitted: Any
) -> Slots:
    """So many free slots, with a cache of `kept` recurrences and `capacity` tokens each."""
    zeros, dtype = jnp.zeros(slots, jnp.int32), jnp.dtype(model.compute_dtype)
    state = jnp.zeros((slots, model.width), dtype)
    return Slots(
        status=zeros, request=zeros - 1, position=zeros + 0, last_position=zeros + 0,
        loop=zeros + 0, key=jax.vmap(jax.random.key)(jnp.zeros(slots, jnp.uint32)),
        state=state, input=state + 0,
        memory=SIGNALS[looks.signal].init(fitted, zeros, state, model.vocab_size),
        stacks=empty(model, kept, slots, capacity),
    )  # fmt: skip
