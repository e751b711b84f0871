"""A task whose answers need different depths by construction: x, k, and then fᵏ(x).

f is a fixed permutation of 32 symbols in one cycle, and k = 1 … 8 says how often to apply it:
"17 k3 4" means f(f(f(17))) = 4. Loop i of a looped model is to answer with min(i, k) hops, so each
loop learns one hop, and a token with a large k needs more of them. Where no answer is due, every
loop is to say the end-of-text token.

Small k are more frequent, in the held-out text most of all. Both texts ask for all 256 pairs of x
and k: the task is about the depth that an answer takes, not about what a model makes of new pairs.
"""

from collections.abc import Iterator

import numpy as np

from looped_jax.data.sources.pieces import END_OF_TEXT, Piece
from looped_jax.data.sources.source import LoopTargets, Source, Split
from looped_jax.files import sha256_of_json

SYMBOLS = 32
MOST_HOPS = 8
SEED = 7
TRIPLES = {"train": 1 << 17, "validation": 1 << 12}
PIECE_TRIPLES = 1 << 12
# Share of k = 1, 2, … in the held-out text; the training text mixes it with equal shares.
HOP_SHARES = 0.55 * 0.45 ** np.arange(MOST_HOPS) + 0.02
EQUAL_PART = 0.6

VOCABULARY = (
    END_OF_TEXT,
    *(str(symbol) for symbol in range(SYMBOLS)),
    *(f"k{hops}" for hops in range(1, MOST_HOPS + 1)),
)
FIRST_SYMBOL = 1  # ids of "0" and of "k1"
FIRST_HOPS = FIRST_SYMBOL + SYMBOLS


def source() -> Source:
    """Both splits, their vocabulary, and what each loop is to answer."""
    return Source(
        train=[HopsInput("train")],
        validation=[HopsInput("validation")],
        held_out_fraction=None,
        vocabulary=VOCABULARY,
        loop_targets=LoopTargets(MOST_HOPS, answers_by_loop),
    )


def powers() -> np.ndarray:
    """f⁰ … f⁸ of every symbol, (9, 32)."""
    cycle = np.random.default_rng(SEED).permutation(SYMBOLS)
    place = np.argsort(cycle)
    return np.stack([cycle[(place + hops) % SYMBOLS] for hops in range(MOST_HOPS + 1)])


def answers_by_loop(ids_N: np.ndarray) -> np.ndarray:
    """What loop 1 … 8 is to say in place of each token, (N, 8), for the ids of whole triples."""
    symbol, hops, _ = ids_N.reshape(-1, 3).T
    hops_at_loop = np.minimum(np.arange(1, MOST_HOPS + 1), hops[:, None] - FIRST_HOPS + 1)
    answers = FIRST_SYMBOL + powers()[hops_at_loop, symbol[:, None] - FIRST_SYMBOL]
    nothing = np.zeros_like(answers)  # the id of END_OF_TEXT
    return np.stack([nothing, nothing, answers], axis=1).reshape(-1, MOST_HOPS)


class HopsInput:
    """One split: triples drawn by a fixed seed, in one document."""

    def __init__(self, split: Split):
        self.name = f"hops:{split}"
        self.size = TRIPLES[split]
        self.consumed = 0
        self._split: Split = split

    def sha256(self) -> str:
        return sha256_of_json([self.name, self.size, [piece.text for piece in self.pieces()]])

    def stamp(self) -> list[str]:
        return [self.sha256()]

    def pieces(self) -> Iterator[Piece]:
        rng = np.random.default_rng([SEED, len(self._split)])
        share = HOP_SHARES / HOP_SHARES.sum()
        if self._split == "train":
            share = (1 - EQUAL_PART) * share + EQUAL_PART / MOST_HOPS
        answers = powers()
        for first in range(0, self.size, PIECE_TRIPLES):
            hops = 1 + rng.choice(MOST_HOPS, PIECE_TRIPLES, p=share)
            symbol = rng.integers(0, SYMBOLS, PIECE_TRIPLES)
            triples = zip(symbol, hops, answers[hops, symbol], strict=True)
            self.consumed = first + PIECE_TRIPLES
            text = "".join(f"{x} k{k} {y} " for x, k, y in triples)
            yield Piece(text, ends_document=self.consumed == self.size)
