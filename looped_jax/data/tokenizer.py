"""Text to tokens and back, with HF `tokenizers`: a trained byte-level BPE or any tokenizer.json."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from looped_jax.data.sources.pieces import END_OF_TEXT
from looped_jax.errors import UserError

# Every byte is a token, so that any text has tokens, and one more ends a document.
SMALLEST_VOCABULARY = 257

_SPACES = np.array([i for i in range(0x3001) if chr(i).isspace()], np.uint32)  # the last is U+3000


class Encoded(NamedTuple):
    """A text as tokens, and how they cover it.

    Attributes:
      ids: int32 (tokens,).
      covered: bytes of text that each token newly covers, (tokens,). They add up to the length of
        the text in UTF-8: a character that several tokens spell counts at the first, and what a
        tokenizer drops counts at the token after it.
      characters: of the text, spaces left out.
      unspelled: how many of them no token stands for, or only the one for the unknown.
      example: the first few of those.
    """

    ids: np.ndarray
    covered: np.ndarray
    characters: int
    unspelled: int
    example: str


class Tokenizer:
    """A tokenizer and its end-of-text token, which no text but the end of a document encodes to.

    Attributes:
      vocab_size: one more than the largest id.
      end_of_text_id: the id that stands after each document.
      end_of_text: its token.
      name: what it was read from, for messages.
      spells_everything: whether any text has tokens, as with one trained here.

    Raises:
      UserError: it has no such token, or encodes a text differently each time.
    """

    def __init__(self, backend: tokenizers.Tokenizer, end_of_text: str, name: str):
        end_of_text_id = backend.token_to_id(end_of_text)
        if end_of_text_id is None:
            special = [t.content for t in backend.get_added_tokens_decoder().values()]
            raise UserError(
                f"{name} has no token {end_of_text!r}: name the one that ends a document with "
                f"--end_of_text (its special tokens: {', '.join(map(repr, special)) or 'none'})"
            )
        described = json.loads(backend.to_str())["model"]
        if described.get("dropout"):
            raise UserError(
                f"{name} draws tokens at random: its model has dropout = {described['dropout']}; "
                "allowed: null or 0, so that a text has the same tokens each time"
            )
        # Models name the token for the unknown, or (Unigram) its number.
        unknown = described.get("unk_token")
        self._unknown_id = backend.token_to_id(unknown) if unknown else described.get("unk_id")
        self.name, self.end_of_text, self.spells_everything = name, end_of_text, False
        # A text that spells a special token is text.
        backend.encode_special_tokens = True
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.end_of_text_id: int = end_of_text_id
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def from_json(cls, text: str, end_of_text: str, name: str) -> "Tokenizer":
        """What `to_json` made. Raises UserError if it is none, or lacks `end_of_text`."""
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower class
            raise UserError(f"{name} is not a tokenizer.json: {error}") from error
        return cls(backend, end_of_text, name)

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, int32 (tokens,), without any special token around them.

        Raises UserError for a word that a vocabulary of words does not have.
        """
        try:
            return _ids(self._backend.encode(text, add_special_tokens=False))
        except Exception as error:  # the library raises no narrower class
            raise UserError(f"cannot encode {text!r}: {error}") from error

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of several texts, on all cores."""
        batch = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [_ids(encoding) for encoding in batch]

    def encode_and_measure(self, texts: Sequence[str]) -> list[Encoded]:
        """Ids of several texts, on all cores, and how they cover the texts."""
        try:
            batch = self._backend.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises no narrower class
            raise UserError(f"{self.name} cannot spell the text: {error}") from error
        return [self._measured(text, each) for text, each in zip(texts, batch, strict=True)]

    def _measured(self, text: str, encoding: tokenizers.Encoding) -> Encoded:
        ids = _ids(encoding)
        spans_N2 = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        covered = _byte_positions(text)[spans_N2[:, 1]]
        if len(covered):
            covered[-1] = len(text.encode())
        known_N2 = spans_N2 if self._unknown_id is None else spans_N2[ids != self._unknown_id]
        begun, ended = (np.bincount(known_N2[:, i], minlength=len(text) + 1) for i in (0, 1))
        is_spelled = np.cumsum(begun - ended)[: len(text)] > 0
        is_space = np.isin(_code_points(text), _SPACES)
        lost = np.flatnonzero(~is_spelled & ~is_space)
        example = "".join(text[i] for i in lost[:8])
        characters = len(text) - int(is_space.sum())
        return Encoded(ids, np.diff(covered, prepend=0), characters, len(lost), example)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; special tokens are shown, bytes that form no character become �."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def to_json(self) -> str:
        """What `load` reads back from a file."""
        return self._backend.to_str(pretty=True) + "\n"


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE: all 256 bytes, `<|endoftext|>` as id 0, merges by frequency.

    The same texts give the same tokenizer. The vocabulary is smaller than asked for if the texts
    have too few distinct pairs. Raises UserError if it cannot hold all bytes.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(
            f"--vocab_size={vocab_size}: a byte-level vocabulary has {SMALLEST_VOCABULARY} or more"
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(iter(texts), trainer)
    trained = Tokenizer(backend, END_OF_TEXT, "the trained tokenizer")
    trained.spells_everything = True
    return trained


def of_words(words: Sequence[str]) -> Tokenizer:
    """A token for each word, in this order, `<|endoftext|>` among them; blanks lie between words.

    A text with another word has no tokens.
    """
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([END_OF_TEXT])
    return Tokenizer(backend, END_OF_TEXT, "the vocabulary")


def load(path: str | os.PathLike[str], end_of_text: str = END_OF_TEXT) -> Tokenizer:
    """Reads a tokenizer.json. Raises UserError if it is missing, none, or lacks `end_of_text`."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UserError(f"cannot read tokenizer {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a tokenizer.json: it is not text") from error
    return Tokenizer.from_json(text, end_of_text, str(path))


def _ids(encoding: tokenizers.Encoding) -> np.ndarray:
    return np.array(encoding.ids, np.int32)


def _byte_positions(text: str) -> np.ndarray:
    """Where each character begins in UTF-8, and where the last one ends: (characters + 1,)."""
    code_points = _code_points(text)
    widths = 1 + (code_points >= 0x80) + (code_points >= 0x800) + (code_points >= 0x10000)
    return np.concatenate([[0], np.cumsum(widths)])


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
