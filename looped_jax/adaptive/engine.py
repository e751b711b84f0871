"""Requests through slots: who is admitted when, and the tokens that come out.

The slots themselves are compiled (see `slots`); here the host fills free ones with waiting requests
and hands out what was drawn. Where a request stands among others, and how many slots there are,
changes none of its tokens: keys and signals are its own.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.adaptive import boundary_size
from looped_jax.adaptive import slots as verbs
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.prefix import Prefix, prefill
from looped_jax.adaptive.rule import Looks
from looped_jax.adaptive.steps import IDLE, Choose, Emitted, Slots
from looped_jax.model.config import ModelConfig

# Prompts that are run together, and ticks between two looks at what was drawn.
PROMPTS_TOGETHER = 4
TICKS = 64
# The part of the slots that are free before waiting requests get them: one of so many.
FREE_TOGETHER = 8


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt to go on from.

    Attributes:
      prompt: token ids, one at least.
      max_tokens: most tokens to draw, one at least.
      key: of its draws, and of its start from noise.
    """

    prompt: np.ndarray
    max_tokens: int
    key: Any


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One new token: of request number `request`; `loops` is the depth that it was drawn at."""

    request: int
    token: int
    loops: int
    nats: float


@dataclasses.dataclass(frozen=True)
class Size:
    """What the slots have room for.

    Attributes:
      slots: S. boundary: C, tokens that go through coda and head together, 1 to S; None to choose
        it by measured times and the loops of the first prompts.
      kept: recurrences in the cache. capacity: tokens of a text. prompt: tokens of a prompt.
    """

    slots: int
    boundary: int | None
    kept: int
    capacity: int
    prompt: int


def prompts_together(requests: int) -> int:
    """Prompts of one prefill."""
    return min(PROMPTS_TOGETHER, requests)


class Engine:
    """Slots of one model under one rule.

    Attributes:
      ticks, busy: ticks so far, and slots that looped in them, summed.
      boundary: C; chosen once the first prompts have run, if it was not given.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Any,
        looks: Looks,
        exits: Exits,
        size: Size,
        choose: Choose,
        knobs: Any,
        end_of_text: int,
    ):
        self._params, self._exits, self._size, self._knobs = params, exits, size, knobs
        self._prefill = prefill(model, looks, size.kept)
        self._insert = verbs.insert(model)
        self._generate = lambda boundary: verbs.generate(
            model, looks, boundary, choose, end_of_text
        )
        self._measure = functools.partial(
            boundary_size.measure, model, looks, choose, end_of_text, params
        )
        self.boundary = size.boundary
        self._idle = lambda: verbs.idle_slots(
            model, looks, size.slots, size.kept, size.capacity, exits.fitted
        )
        self.ticks, self.busy = 0, 0

    def run(
        self, requests: Sequence[Request], is_stopped: Callable[[int], bool] = lambda request: False
    ) -> Iterator[Drawn]:
        """Tokens of all requests as they are drawn; those of one request in their order.

        Args:
          is_stopped: whether a request wants no more tokens than it has got.
        """
        waiting: deque[int] = deque(range(len(requests)))
        ready: deque[tuple[int, Prefix, int]] = deque()
        slots, held = self._idle(), np.full(self._size.slots, -1)
        while waiting or ready or (held >= 0).any():
            for slot in np.flatnonzero(held < 0).tolist():
                if waiting and not ready:
                    ready.extend(self._prefixes(requests, waiting))
                if ready:
                    request, prefix, row = ready.popleft()
                    slots = self._admit(slots, prefix, row, slot, request, requests[request])
                    held[slot] = request
            # With requests waiting, come back when some slots are free: each way to the host and
            # back costs as much as many ticks of a small model.
            left = len(waiting) + len(ready)
            idle = min(left, max(1, self._size.slots // FREE_TOGETHER)) or self._size.slots + 1
            slots, emitted = self._generate(self.boundary)(
                self._params, slots, np.int32(TICKS), np.int32(idle), held >= 0, self._exits,
                self._knobs,
            )  # fmt: skip
            emitted, status = jax.device_get((emitted, slots.status))
            self.ticks += int(emitted.ticks)
            self.busy += int(emitted.busy)
            for drawn in _drawn(emitted):
                if not is_stopped(drawn.request):
                    yield drawn
            for slot in np.flatnonzero(held >= 0).tolist():
                if status[slot] == IDLE or is_stopped(int(held[slot])):
                    held[slot] = -1

    def _prefixes(
        self, requests: Sequence[Request], waiting: deque[int]
    ) -> list[tuple[int, Prefix, int]]:
        """The next few requests with their prompts in a cache: (request, Prefix, row of it)."""
        rows = prompts_together(len(requests))
        taken = [waiting.popleft() for _ in range(min(rows, len(waiting)))]
        tokens_BT = np.zeros((rows, self._size.prompt), np.int32)
        length_B = np.ones(rows, np.int32)
        keys = [requests[request].key for request in taken]
        keys += [keys[0]] * (rows - len(taken))
        for row, request in enumerate(taken):
            prompt = requests[request].prompt
            tokens_BT[row, : len(prompt)], length_B[row] = prompt, len(prompt)
        prefix = self._prefill(self._params, tokens_BT, length_B, jnp.stack(keys), self._exits)
        if self.boundary is None:
            loops_BT = np.asarray(prefix.loops)
            self.boundary = self._choose_boundary(float(loops_BT[loops_BT > 0].mean()))
        return [(request, prefix, row) for row, request in enumerate(taken)]

    def _choose_boundary(self, mean_loops: float) -> int:
        S = self._size.slots
        if S == 1:
            return 1
        tick, boundary = self._measure(self._idle(), self._exits, self._knobs)
        return boundary_size.cheapest(S, mean_loops, tick, boundary)

    def _admit(
        self, slots: Slots, prefix: Prefix, row: int, slot: int, number: int, request: Request
    ) -> Slots:
        last = len(request.prompt) + request.max_tokens - 1
        at = (np.int32(number) for number in (row, slot, number, last))
        return self._insert(slots, prefix, *at, request.key)


def _drawn(emitted: Emitted) -> Iterator[Drawn]:
    fields = (emitted.request, emitted.token, emitted.loops, emitted.nats)
    for of_token in zip(*(field[: int(emitted.filled)].tolist() for field in fields), strict=True):
        yield Drawn(*of_token)
