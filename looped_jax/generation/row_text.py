"""The text of one row while it grows: whole characters only, and nothing of a stop string."""

from collections.abc import Sequence

from looped_jax.data.tokenizer import Tokenizer

# What a decoder shows for bytes that form no character (yet).
INCOMPLETE = "\ufffd"

# Tokens of the prompt that are decoded along, for decoders that treat a first token differently.
_CONTEXT = 4


class RowText:
    """Turns tokens into pieces of text that may be shown.

    A piece is held back while it ends in an incomplete character, or in what may become a stop
    string.

    Attributes:
      text: all that was released.
      stopped: whether a stop string was met; it and what follows belong to no piece.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], stops: Sequence[str]):
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._before = [int(i) for i in prompt_ids[-_CONTEXT:]]
        self._new: list[int] = []
        self._held = ""
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Takes the next token; returns the text that it releases."""
        self._new.append(int(token))
        text = self._decode_new()
        if text.endswith(INCOMPLETE):
            return ""
        if text:
            self._before, self._new = self._new[-_CONTEXT:], []
        return self._release(text, last=False)

    def finish(self) -> str:
        """What is still held back; to be called once, after the last token."""
        return "" if self.stopped else self._release(self._decode_new(), last=True)

    def _decode_new(self) -> str:
        known = self._tokenizer.decode(self._before)
        return self._tokenizer.decode(self._before + self._new)[len(known) :]

    def _release(self, text: str, last: bool) -> str:
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            end, self.stopped = min(found), True
        else:
            end = len(self._held) if last else len(self._held) - self._may_become_stop()
        piece, self._held = self._held[:end], self._held[end:]
        self.text += piece
        return piece

    def _may_become_stop(self) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        lengths = (
            size
            for stop in self._stops
            for size in range(1, min(len(stop), len(self._held) + 1))
            if self._held.endswith(stop[:size])
        )
        return max(lengths, default=0)
