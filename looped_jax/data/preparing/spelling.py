"""What a tokenizer cannot say of a text: characters it drops or does not know, and a false end."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from looped_jax.data.tokenizer import Encoded, Tokenizer
from looped_jax.errors import UserError

# Share of the characters (spaces left out) that may have no token of their own; and the share at
# which the rest of a large text is not waited for.
MOST_UNSPELLED = 0.01
HOPELESS = 0.1


class Spelling:
    """Counts the characters of a split that a tokenizer drops or encodes as the unknown one."""

    def __init__(self, encoder: Tokenizer, split: str):
        self._encoder, self._split = encoder, split
        self._characters = self._unspelled = 0
        self._example = ""

    def add(self, texts: Sequence[Encoded]) -> None:
        """Raises UserError if hardly anything of a text can be spelled."""
        for text in texts:
            self._characters += text.characters
            self._unspelled += text.unspelled
            self._example = self._example or text.example
        self._refuse_above(HOPELESS)

    @property
    def counts(self) -> dict[str, Any]:
        """Characters, those of them without a token of their own, and an example of these."""
        return {
            "characters": self._characters, "unspelled": self._unspelled, "example": self._example,
        }  # fmt: skip

    def join(self, counts: dict[str, Any]) -> None:
        """Adds what another one counted."""
        self._characters += counts["characters"]
        self._unspelled += counts["unspelled"]
        self._example = self._example or counts["example"]

    def finish(self, say: Callable[[str], None]) -> float:
        """The share of characters without a token of their own.

        Raises UserError if it is above MOST_UNSPELLED; says so if it is above 0.
        """
        self._refuse_above(MOST_UNSPELLED)
        if self._unspelled:
            say(f"tokens of {self._split}: {self._describe()}")
        return self._share

    @property
    def _share(self) -> float:
        return self._unspelled / max(1, self._characters)

    def _refuse_above(self, bound: float) -> None:
        if self._share > bound:
            raise UserError(
                f"{self._encoder.name} cannot spell the {self._split} split: {self._describe()}; "
                f"allowed: up to {MOST_UNSPELLED:.0%}"
            )

    def _describe(self) -> str:
        return (
            f"{self._unspelled:,} of {self._characters:,} characters ({self._share:.2%}, such as "
            f"{self._example!r}) are dropped or unknown to the tokenizer"
        )


def refuse_end_of_text(ids: np.ndarray, encoder: Tokenizer, documents: int, split: str) -> None:
    """Raises UserError if the tokens of a text hold the one that ends a document.

    Args:
      documents: complete ones of the split before this text, for the message.
    """
    if (ids == encoder.end_of_text_id).any():
        raise UserError(
            f"document {documents + 1} of the {split} split spells the token that ends a document "
            f"(id {encoder.end_of_text_id}), which {encoder.name} has as an ordinary token; "
            'allowed: a token that no text spells ("special": true in added_tokens)'
        )
