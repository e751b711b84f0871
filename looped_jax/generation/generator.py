"""Generator: prompts to text with one model, at any depth.

generator = Generator(model, params, tokenizer)
for result in generator.generate(["Once upon", "It was"], recurrences=4, max_tokens=50):
    print(result.text)
for piece in generator.stream(["Once upon"]):
    print(piece.text, end="")
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError
from looped_jax.generation import caches
from looped_jax.generation.decoding import decode, prefill
from looped_jax.generation.row_text import RowText
from looped_jax.generation.sampling import Sampling, next_token
from looped_jax.model.config import ModelConfig

# Prompts and caches are padded to powers of two from here on, so that few shapes are compiled.
SMALLEST_BUCKET = 16


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one call was turned into.

    Attributes:
      recurrences: r of every token.
      prompts: token ids of each prompt.
      max_tokens: most new tokens of each row; fewer than asked for where the context ends.
      cache, slots: kind of cache and recurrences that it has room for.
      prompt_bucket, capacity: tokens that the prompts and the cache are padded to.
    """

    recurrences: int
    prompts: list[np.ndarray]
    max_tokens: list[int]
    cache: str
    slots: int
    prompt_bucket: int
    capacity: int


@dataclasses.dataclass(frozen=True)
class Piece:
    """Text that row `row` has newly got; `finish` stands in the last piece of each row."""

    row: int
    text: str
    finish: str | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """One row's result.

    Attributes:
      prompt: as given.
      text: what was generated, without the stop string.
      tokens: how many tokens were generated, one that ended the text included.
      finish: "stop" (a stop string), "end_of_text", "max_tokens", or "context" (it is full).
    """

    prompt: str
    text: str
    tokens: int
    finish: str


class Generator:
    """A model, its parameters and its tokenizer.

    Args:
      model: the model; its mesh, if it has one, has to be active in every call.
      params: parameters.
      tokenizer: with no more ids than the model; ids beyond the tokenizer's are never drawn.

    Raises:
      UserError: the tokenizer does not fit the model.
    """

    def __init__(self, model: ModelConfig, params: Any, tokenizer: Tokenizer):
        if tokenizer.vocab_size > model.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.vocab_size} ids; allowed: up to "
                f"model.vocab_size = {model.vocab_size}"
            )
        self.model, self.params, self.tokenizer = model, params, tokenizer
        self._choose = jax.jit(self._choose_token)

    def plan(
        self,
        prompts: Sequence[str],
        *,
        recurrences: int | None = None,
        max_tokens: int = 100,
        cache: str = "every_recurrence",
        slots: int | None = None,
    ) -> Plan:
        """Checks a call and says what it will do; arguments as of `stream`.

        Raises:
          UserError: an argument is not allowed, or a prompt is longer than the context.
        """
        r = self.model.recurrences if recurrences is None else recurrences
        deepest = self.model.recurrences if self.model.injection == "hyperconnect" else None
        if r < 1 or (deepest and r > deepest):
            allowed = f"1 to {deepest} (rows of the lane table)" if deepest else "1 or more"
            raise UserError(f"recurrences = {r}; allowed: {allowed}")
        if cache not in caches.KINDS:
            raise UserError(f"cache {cache!r}; allowed: {', '.join(caches.KINDS)}")
        needed = caches.count_slots(cache, r)
        if slots is not None and (slots < needed or cache != "every_recurrence"):
            raise UserError(
                f"slots = {slots}; allowed with every_recurrence: {r} recurrences or more"
            )
        if max_tokens < 1:
            raise UserError(f"max_tokens = {max_tokens}; allowed: 1 or more")
        if not prompts:
            raise UserError("no prompt was given; allowed: one or more")
        ids = [self._encode(prompt) for prompt in prompts]
        context = self.model.max_length
        new = [min(max_tokens, context - len(row)) for row in ids]
        longest = max(len(row) for row in ids)
        filled = max(len(row) + n for row, n in zip(ids, new, strict=True))
        return Plan(
            r, ids, new, cache, slots or needed, self._bucket(longest), self._bucket(filled)
        )

    def describe(self, plan: Plan) -> str:
        """The cache of a plan and its memory, in one line."""
        return caches.describe(self.model, plan.cache, plan.slots, len(plan.prompts), plan.capacity)

    def stream(
        self,
        prompts: Sequence[str],
        *,
        recurrences: int | None = None,
        max_tokens: int = 100,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        cache: str = "every_recurrence",
        slots: int | None = None,
    ) -> Iterator[Piece]:
        """Yields text as it comes: whole characters, nothing of a stop string.

        Args:
          prompts: one row each, of any lengths. An empty one stands for the start of a document.
          recurrences: r of all tokens; None for the config's.
          max_tokens: most new tokens; a row also ends where the context does.
          sampling: how tokens are drawn; None for temperature 1.
          stop: strings that end a row.
          cache: what is kept of the recurrences; see `caches`.
          slots: recurrences to make room for, so that calls of several depths are one compiled
            program; None for as many as are run.

        Raises:
          UserError: as `plan` does, or an empty stop string.
        """
        plan = self.plan(
            prompts, recurrences=recurrences, max_tokens=max_tokens, cache=cache, slots=slots
        )
        if "" in stop:
            raise UserError("stop = ''; allowed: strings of one character or more")
        return self._run(plan, sampling or Sampling(), stop)

    def generate(self, prompts: Sequence[str], **arguments: Any) -> list[Result]:
        """The results of all rows at once; arguments as of `stream`."""
        texts, tokens = [""] * len(prompts), [0] * len(prompts)
        finish = [""] * len(prompts)
        for piece in self.stream(prompts, **arguments):
            texts[piece.row] += piece.text
            tokens[piece.row] += 1
            finish[piece.row] = piece.finish or ""
        rows = zip(prompts, texts, tokens, finish, strict=True)
        return [Result(*row) for row in rows]

    def _run(self, plan: Plan, sampling: Sampling, stop: Sequence[str]) -> Iterator[Piece]:
        B = len(plan.prompts)
        keys_B, knobs, r = sampling.keys(B), sampling.knobs(), jnp.int32(plan.recurrences)
        rows = [RowText(self.tokenizer, ids.tolist(), stop) for ids in plan.prompts]
        made, finished = [0] * B, [False] * B
        length_B = np.array([len(ids) for ids in plan.prompts], np.int32)
        tokens_BT = np.zeros((B, plan.prompt_bucket), np.int32)
        for row, ids in enumerate(plan.prompts):
            tokens_BT[row, : len(ids)] = ids

        fill = prefill(self.model, plan.slots, plan.capacity)
        step = decode(self.model, plan.slots)
        logits_BV, cache = fill(self.params, tokens_BT, length_B, keys_B, r)
        token_B = self._choose(logits_BV, cache.length, keys_B, knobs)
        while True:
            # The next step is on its way before this one's tokens are looked at.
            more = any(
                not done and made[row] + 1 < plan.max_tokens[row]
                for row, done in enumerate(finished)
            )
            upcoming = None
            if more:
                logits_BV, cache = step(self.params, cache, token_B, keys_B, r)
                upcoming = self._choose(logits_BV, cache.length, keys_B, knobs)
            for row, token in enumerate(np.asarray(token_B).tolist()):
                if finished[row]:
                    continue
                made[row] += 1
                piece = self._piece(row, token, rows[row], made[row], plan)
                finished[row] = piece.finish is not None
                yield piece
            if all(finished) or upcoming is None:
                return
            token_B = upcoming

    def _piece(self, row: int, token: int, text: RowText, made: int, plan: Plan) -> Piece:
        if token == self.tokenizer.end_of_text_id:
            return Piece(row, text.finish(), "end_of_text")
        piece = text.push(token)
        if text.stopped:
            return Piece(row, piece, "stop")
        if made < plan.max_tokens[row]:
            return Piece(row, piece)
        piece += text.finish()
        if text.stopped:
            return Piece(row, piece, "stop")
        is_full = len(plan.prompts[row]) + made >= self.model.max_length
        return Piece(row, piece, "context" if is_full else "max_tokens")

    def _choose_token(self, logits_BV, length_B, keys_B, knobs):
        known_V = jnp.arange(self.model.vocab_size) < self.tokenizer.vocab_size
        logits_BV = jnp.where(known_V[None], logits_BV, jnp.float32(-jnp.inf))
        return next_token(logits_BV, jax.vmap(jax.random.fold_in)(keys_B, length_B), knobs)

    def _encode(self, prompt: str) -> np.ndarray:
        if not prompt:
            return np.array([self.tokenizer.end_of_text_id], np.int32)
        ids, most = self.tokenizer.encode(prompt), self.model.max_length - 1
        start = prompt if len(prompt) <= 20 else f"{prompt[:20]}…"
        if not len(ids):
            raise UserError(f"prompt {start!r} has no tokens in this tokenizer")
        if len(ids) > most:
            raise UserError(
                f"prompt {start!r} has {len(ids)} tokens; allowed: up to {most} "
                f"(model.max_length = {self.model.max_length}, and one to generate)"
            )
        return ids

    def _bucket(self, length: int) -> int:
        """The power of two that holds so many tokens; at most the context."""
        size = SMALLEST_BUCKET
        while size < length:
            size *= 2
        return min(size, self.model.max_length)
