"""The tokenizer of a preparation: given, made of a task's words, or trained on a sample."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from looped_jax.data import shards, tokenizer
from looped_jax.data.preparing.folder import one_after_another
from looped_jax.data.preparing.progress import Progress
from looped_jax.data.sources.source import Source
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.files import write_bytes


def encoder_of(
    source: Source,
    loaded: Tokenizer | None,
    request: dict[str, Any],
    folder: Path,
    say: Callable[[str], None],
) -> Tokenizer:
    """The tokenizer, of which the folder then holds a copy; one that was trained before stays.

    Of several parts the first to come trains it, on the sample of all the text, and the others
    wait; where that one is killed, the next takes its place.
    """
    path = folder / shards.TOKENIZER
    if source.vocabulary is not None:
        loaded = tokenizer.of_words(source.vocabulary)
    if loaded is not None:
        write_bytes(path, loaded.to_json().encode())
        return loaded
    wait = lambda holder: say(f"waiting for the tokenizer, which {holder} trains")
    with one_after_another(folder / ".lock-tokenizer", wait):
        if not path.exists():
            encoder = _train(source, request, say)
            write_bytes(path, encoder.to_json().encode())
            return encoder
    encoder = tokenizer.load(path, request["end_of_text"])
    encoder.spells_everything = True
    return encoder


def _train(source: Source, request: dict[str, Any], say: Callable[[str], None]) -> Tokenizer:
    """Trains on the beginning of every input, as many characters of each."""
    inputs = source.inputs("train")
    share = math.ceil(request["tokenizer_sample"] / len(inputs))
    progress = Progress("tokenizer", sum(each.size for each in inputs), say)
    cut = False

    def texts() -> Iterator[str]:
        nonlocal cut
        for each in inputs:
            characters, told = 0, 0
            for split, piece in source.parts([each], "train"):
                progress.add(each.consumed - told, len(piece.text) if split == "train" else 0)
                told = each.consumed
                if split != "train":
                    continue
                text = piece.text[: share - characters]
                characters += len(text)
                yield text
                if len(text) < len(piece.text):
                    cut = True
                    break
            progress.add(each.size - told, 0)

    vocab_size = request["vocab_size"]
    trained = tokenizer.train(texts(), vocab_size)
    progress.finish()
    if cut:
        say(f"tokenizer: trained on the first {share:,} characters of each input")
    if trained.vocab_size < vocab_size:
        say(
            f"tokenizer: the text has merges for {trained.vocab_size:,} tokens only, "
            f"not for --vocab_size={vocab_size}"
        )
    return trained
