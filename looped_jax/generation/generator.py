"""Generator: prompts to text with one model, at any depth.

generator = Generator(model, params, tokenizer)
for result in generator.generate(["Once upon", "It was"], recurrences=4, max_tokens=50):
    print(result.text)
for piece in generator.stream(["Once upon"]):
    print(piece.text, end="")
generator.generate(["Once upon"], exit="change:0.02", slots=32)  # tokens stop looping one by one
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.adaptive import memory
from looped_jax.adaptive.engine import Engine, Request, Size
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Rule
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError
from looped_jax.generation import caches
from looped_jax.generation.decoding import decode, prefill
from looped_jax.generation.plan import Plan, make_plan, signal_bytes
from looped_jax.generation.row_text import RowText
from looped_jax.generation.sampling import Chooser, Knobs, Sampling
from looped_jax.model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Piece:
    """Text that row `row` has newly got with one token, which was drawn after so many `loops`.

    `finish` stands in the last piece of each row.
    """

    row: int
    text: str
    loops: int
    finish: str | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """One row's result.

    Attributes:
      prompt: as given.
      text: what was generated, without the stop string.
      tokens: how many tokens were generated, one that ended the text included.
      finish: "stop" (a stop string), "end_of_text", "max_tokens", or "context" (it is full).
      loops: recurrences after which each of these tokens was drawn.
    """

    prompt: str
    text: str
    tokens: int
    finish: str
    loops: tuple[int, ...]


class Generator:
    """A model, its parameters and its tokenizer.

    Args:
      model: the model; its mesh, if it has one, has to be active in every call.
      params: parameters.
      tokenizer: with no more ids than the model; ids beyond the tokenizer's are never drawn.
      folder: of the run, whose exits.json has what "auto:" rules and fitted signals need; None for
        rules that need none.
      most: with an exit, the loop at which every token stops unless a call says otherwise; None for
        the config's recurrences.

    Raises:
      UserError: the tokenizer does not fit the model.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Any,
        tokenizer: Tokenizer,
        most: int | None = None,
        folder: Path | None = None,
    ):
        if tokenizer.vocab_size > model.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.vocab_size} ids; allowed: up to "
                f"model.vocab_size = {model.vocab_size}"
            )
        self.model, self.params, self.tokenizer, self.most = model, params, tokenizer, most
        self._folder = folder
        choose = self._chooser = Chooser(tokenizer.vocab_size)
        self._choose = jax.jit(lambda *arguments: choose(*arguments))

    def plan(self, prompts: Sequence[str], **arguments: Any) -> Plan:
        """Checks a call and says what it will do; arguments as of `stream`, sampling left out.

        Raises:
          UserError: an argument is not allowed, or a prompt is longer than the context.
        """
        return make_plan(
            self.model, self.tokenizer, prompts, most=self.most, folder=self._folder, **arguments
        )

    def describe(self, plan: Plan) -> str:
        """The cache of a plan and its memory, in one line."""
        return caches.describe(self.model, plan.cache, plan.kept, plan.rows, plan.capacity)

    def stream(
        self,
        prompts: Sequence[str],
        *,
        recurrences: int | None = None,
        max_tokens: int = 100,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        cache: str = caches.KINDS[0],
        deepest: int | None = None,
        exit: Rule | str | None = None,
        slots: int | None = None,
        boundary: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> Iterator[Piece]:
        """Yields text as it comes: whole characters, nothing of a stop string.

        Args:
          prompts: one row each, of any lengths. An empty one stands for the start of a document.
          recurrences: r of all tokens, or with an exit the most of them; None for the config's.
          max_tokens: most new tokens; a row also ends where the context does.
          sampling: how tokens are drawn; None for temperature 1.
          stop: strings that end a row.
          cache: what is kept of the recurrences; see `caches`.
          deepest: recurrences to make room for, so that calls of several depths are one compiled
            program; None for as many as are run.
          exit: when a token stops looping, such as "change:0.02" (see `adaptive.rule`) or, of a
            run that the suite exits has measured, "auto:0.005"; None for r loops of every token.
          slots: texts that are written at a time, each at a loop of its own; None for all in step,
            or with an exit as many as there are prompts, up to 32. Their number changes no text.
          boundary: slots that wait for each other before they go through the head together; None
            to choose by measured times.
          rows: numbers of the rows, whose seeds are drawn from; None for 0, 1, …

        Raises:
          UserError: as `plan` does, an empty stop string, or a cache that does not fit.
        """
        plan = self.plan(
            prompts, recurrences=recurrences, max_tokens=max_tokens, cache=cache, deepest=deepest,
            exit=exit, slots=slots, boundary=boundary,
        )  # fmt: skip
        if "" in stop:
            raise UserError("stop = ''; allowed: strings of one character or more")
        self._check_memory(plan)
        run = self._run if plan.rule is None else self._run_slots
        keys_B = (sampling or Sampling()).keys(rows or range(len(prompts)))
        return run(plan, keys_B, (sampling or Sampling()).knobs(), stop)

    def texts(self, prompts: Sequence[str], **arguments: Any) -> Iterator[tuple[int, Result]]:
        """(row, result) of each row when it has ended; arguments as of `stream`."""
        pieces: list[list[Piece]] = [[] for _ in prompts]
        for piece in self.stream(prompts, **arguments):
            pieces[piece.row].append(piece)
            if piece.finish is not None:
                yield piece.row, result_of(prompts[piece.row], pieces[piece.row])

    def generate(self, prompts: Sequence[str], **arguments: Any) -> list[Result]:
        """The results of all rows at once; arguments as of `stream`."""
        found = dict(self.texts(prompts, **arguments))
        return [found[row] for row in range(len(prompts))]

    def _check_memory(self, plan: Plan) -> None:
        free = memory.free_bytes()
        caches.check_memory(self.model, plan.cache, plan.kept, plan.rows, plan.capacity, free)
        if plan.rule is not None:
            caches.check_signal_memory(plan.rule.signal, signal_bytes(self.model, plan), free)

    def _run(
        self, plan: Plan, keys_B: jax.Array, knobs: Knobs, stop: Sequence[str]
    ) -> Iterator[Piece]:
        B, r = len(plan.prompts), jnp.int32(plan.recurrences)
        rows = [RowText(self.tokenizer, ids.tolist(), stop) for ids in plan.prompts]
        made, finished = [0] * B, [False] * B
        length_B = np.array([len(ids) for ids in plan.prompts], np.int32)
        tokens_BT = np.zeros((B, plan.prompt_bucket), np.int32)
        for row, ids in enumerate(plan.prompts):
            tokens_BT[row, : len(ids)] = ids

        fill = prefill(self.model, plan.kept, plan.capacity)
        step = decode(self.model, plan.kept)
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
                piece = self._piece(row, token, rows[row], made[row], plan, plan.recurrences)
                finished[row] = piece.finish is not None
                yield piece
            if all(finished) or upcoming is None:
                return
            token_B = upcoming

    def _run_slots(
        self, plan: Plan, keys_B: jax.Array, knobs: Knobs, stop: Sequence[str]
    ) -> Iterator[Piece]:
        assert plan.rule is not None
        rows = [RowText(self.tokenizer, ids.tolist(), stop) for ids in plan.prompts]
        made, finished = [0] * len(rows), [False] * len(rows)
        requests = [
            Request(ids, new, keys_B[row])
            for row, (ids, new) in enumerate(zip(plan.prompts, plan.max_tokens, strict=True))
        ]
        engine = Engine(
            self.model, self.params, plan.rule.looks,
            Exits(np.float32(plan.rule.threshold), np.int32(plan.recurrences), plan.fitted),
            Size(plan.rows, plan.boundary, plan.kept, plan.capacity, plan.prompt_bucket),
            self._chooser, knobs, self.tokenizer.end_of_text_id,
        )  # fmt: skip
        for drawn in engine.run(requests, finished.__getitem__):
            row = drawn.request
            made[row] += 1
            piece = self._piece(row, drawn.token, rows[row], made[row], plan, drawn.loops)
            finished[row] = piece.finish is not None
            yield piece

    def _piece(
        self, row: int, token: int, text: RowText, made: int, plan: Plan, loops: int
    ) -> Piece:
        if token == self.tokenizer.end_of_text_id:
            return Piece(row, text.finish(), loops, "end_of_text")
        piece = text.push(token)
        if text.stopped:
            return Piece(row, piece, loops, "stop")
        if made < plan.max_tokens[row]:
            return Piece(row, piece, loops)
        piece += text.finish()
        if text.stopped:
            return Piece(row, piece, loops, "stop")
        is_full = len(plan.prompts[row]) + made >= self.model.max_length
        return Piece(row, piece, loops, "context" if is_full else "max_tokens")


def result_of(prompt: str, pieces: Sequence[Piece]) -> Result:
    """The result of one row, of all its pieces in their order."""
    text = "".join(piece.text for piece in pieces)
    loops = tuple(piece.loops for piece in pieces)
    return Result(prompt, text, len(pieces), pieces[-1].finish or "", loops)
