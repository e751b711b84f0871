"""The two steps that slots make: a tick, one recurrence of all; a boundary, from token to token."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from looped_jax.adaptive.exits import Exits, look
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.model.cache import KeysValues, appending
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel

Array = jax.Array

IDLE, LOOPING, EXITED = 0, 1, 2

# (logits (B, V), position of the new token (B,), key of its request (B,), knobs) -> token (B,).
Choose = Callable[[Array, Array, Array, Any], Array]


class Slots(NamedTuple):
    """S slots; each field (S, …). A pytree: `generate` takes it and gives the next one back.

    Attributes:
      status: IDLE, LOOPING, or EXITED and waiting for a boundary.
      request: number of the request, −1 in an idle slot.
      position: of the token that loops; last_position: of the last token that may be drawn.
      loop: loops that the token has done.
      key: of the request's draws.
      state, input: h and e, (S, D); memory: the signal's.
      stacks: keys and values, S rows.
    """

    status: Array
    request: Array
    position: Array
    last_position: Array
    loop: Array
    key: Array
    state: Array
    input: Array
    memory: Any
    stacks: dict[str, KeysValues]


class Emitted(NamedTuple):
    """Tokens in the order in which they were drawn: the first `filled` of each field (E,).

    Attributes:
      request, position: whose token it is, and where it stands in the text.
      token: its id.
      loops: loops after which the token before it exited: the depth that it was drawn at.
      nats: − log of its probability at temperature 1, all ids allowed.
      ticks, busy: (), ticks that were run, and slots that looped in them, summed.
    """

    filled: Array
    request: Array
    position: Array
    token: Array
    loops: Array
    nats: Array
    ticks: Array
    busy: Array


def nothing_emitted(room: int) -> Emitted:
    """Room for so many tokens."""
    ints, zero = jnp.zeros(room, jnp.int32), jnp.int32(0)
    return Emitted(zero, ints, ints, ints, ints, jnp.zeros(room, jnp.float32), zero, zero)


class Steps:
    """The two steps of `generate`, whose arguments these are."""

    def __init__(
        self, model: ModelConfig, looks: Looks, boundary: int, choose: Choose, end_of_text: int
    ):
        self._model, self._looks, self._boundary = model, looks, boundary
        self._choose, self._end_of_text = choose, end_of_text

    def tick(self, params: Any, slots: Slots, exits: Exits) -> Slots:
        """One recurrence of every slot; idle and exited ones leave no trace."""
        frozen = FrozenModel(self._model, params)
        is_looping = slots.status == LOOPING
        kept = slots.stacks["core"].key.shape[0]
        entry_S = jnp.where(is_looping, jnp.minimum(slots.loop, kept - 1), kept)
        x_S1D = frozen.inject(slots.state[:, None], slots.input[:, None], slots.loop)
        y_S1D, core = frozen.core(x_S1D, appending(slots.stacks["core"], entry_S, slots.position))
        new = frozen.absorb(slots.state[:, None], y_S1D, slots.loop)[:, 0]
        loop_S = slots.loop + 1
        exits_S, memory = look(frozen, self._looks, exits, slots.state, new, slots.memory, loop_S)
        choose = lambda new, old: jnp.where(is_looping.reshape(-1, *[1] * (old.ndim - 1)), new, old)
        return slots._replace(
            status=jnp.where(is_looping & exits_S, EXITED, slots.status),
            loop=choose(loop_S, slots.loop),
            state=choose(new, slots.state),
            memory=jax.tree.map(choose, memory, slots.memory),
            stacks=slots.stacks | {"core": core},
        )

    def boundary(
        self, params: Any, slots: Slots, emitted: Emitted, exits: Exits, knobs: Any
    ) -> tuple[Slots, Emitted]:
        """Takes up to C exited slots to the start of their next token, or to their end."""
        frozen, S = FrozenModel(self._model, params), slots.status.shape[0]
        # Slots of the C places, S where there is none.
        slot_C = jnp.nonzero(slots.status == EXITED, size=self._boundary, fill_value=S)[0]
        take = lambda field: field.at[slot_C].get(mode="clip")
        position_C, loop_C, key_C = take(slots.position), take(slots.loop), take(slots.key)
        append = lambda stack, at_C, rows: appending(slots.stacks[stack], jnp.int32(0), at_C, rows)
        core = _copy_to_deeper(slots.stacks["core"], slot_C, position_C, loop_C)
        h_C1D, coda = frozen.coda(take(slots.state)[:, None], append("coda", position_C, slot_C))
        logits_CV = frozen.readout(h_C1D)[:, 0]
        next_C = position_C + 1
        token_C = self._choose(logits_CV, next_C, key_C, knobs)
        emitted = _emit(
            emitted, slot_C < S, take(slots.request), next_C, token_C, loop_C, logits_CV
        )

        ends_C = (token_C == self._end_of_text) | (next_C >= take(slots.last_position))
        on_C = jnp.where(ends_C, S, slot_C)
        x_C1D = frozen.embed(token_C[:, None], next_C[:, None])
        input_C1D, prelude = frozen.prelude(x_C1D, append("prelude", next_C, on_C))
        state_C1D = frozen.initial_state(input_C1D, next_C[:, None], key_C)
        signal = SIGNALS[self._looks.signal]
        memory = signal.init(exits.fitted, token_C, state_C1D[:, 0], self._model.vocab_size)
        put = lambda field, value: field.at[slot_C].set(value, mode="drop")
        return slots._replace(
            status=put(slots.status, jnp.where(ends_C, IDLE, LOOPING)),
            request=put(slots.request, jnp.where(ends_C, -1, take(slots.request))),
            position=put(slots.position, next_C),
            loop=put(slots.loop, 0),
            state=put(slots.state, state_C1D[:, 0]),
            input=put(slots.input, input_C1D[:, 0]),
            memory=jax.tree.map(put, slots.memory, memory),
            stacks={"prelude": prelude, "core": core, "coda": coda},
        ), emitted


def _copy_to_deeper(
    core: KeysValues, slot_C: Array, position_C: Array, loop_C: Array
) -> KeysValues:
    """The entries of the C tokens' last loops, put into all deeper recurrences too."""
    kept, layers = core.key.shape[:2]
    if kept == 1:
        return core
    recurrence_R11 = jnp.arange(kept)[:, None, None]
    to_R1C = jnp.where(recurrence_R11 >= loop_C[None, None], recurrence_R11, kept)
    layer_1L1, last_11C = jnp.arange(layers)[None, :, None], loop_C[None, None] - 1
    slot_11C, position_11C = slot_C[None, None], position_C[None, None]

    def copy(entries: Array) -> Array:
        last = entries.at[last_11C, layer_1L1, slot_11C, :, position_11C].get(mode="clip")
        return entries.at[to_R1C, layer_1L1, slot_11C, :, position_11C].set(last, mode="drop")

    return jax.tree.map(copy, core)


def _emit(
    emitted: Emitted,
    is_there_C: Array,
    request_C: Array,
    position_C: Array,
    token_C: Array,
    loops_C: Array,
    logits_CV: Array,
) -> Emitted:
    """Adds the tokens of the places that hold one."""
    nats_C = -jnp.take_along_axis(jax.nn.log_softmax(logits_CV), token_C[:, None], axis=1)[:, 0]
    room = emitted.token.shape[0]
    at_C = jnp.where(is_there_C, emitted.filled + jnp.cumsum(is_there_C) - 1, room)
    add = lambda field, values: field.at[at_C].set(values, mode="drop")
    return emitted._replace(
        filled=emitted.filled + jnp.sum(is_there_C),
        request=add(emitted.request, request_C),
        position=add(emitted.position, position_C),
        token=add(emitted.token, token_C),
        loops=add(emitted.loops, loops_C),
        nats=add(emitted.nats, nats_C),
    )
