"""Documents as pieces of text, so that neither a corpus nor one long document fills the memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# In a text file this separates documents, as in corpora that come as one large file.
END_OF_TEXT = "<|endoftext|>"
# Long documents are read in pieces of this many characters.
PIECE_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class Piece:
    """Consecutive text of one document; `ends_document` marks its last piece."""

    text: str
    ends_document: bool


def split_documents(chunks: Iterable[str]) -> Iterator[Piece]:
    """Pieces of the documents in a stream of text, which END_OF_TEXT separates.

    What stands between separators is the document, unchanged; blank documents are left out.
    """
    pending, within = "", False  # text not yet passed on; whether its document already began
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(END_OF_TEXT)
        for text in complete:
            yield from cut(text, continues=within)
            within = False
        while len(pending) > 2 * PIECE_CHARACTERS:
            # The rest stays longer than a separator, which may have arrived in part.
            at = _boundary(pending)
            yield Piece(pending[:at], False)
            pending, within = pending[at:], True
    yield from cut(pending, continues=within)


def cut(text: str, *, continues: bool = False) -> Iterator[Piece]:
    """Pieces of the rest of one document; nothing for a blank document.

    Args:
      text: a whole document, or its end if `continues`.
    """
    if not continues and not text.strip():
        return
    while len(text) > 2 * PIECE_CHARACTERS:
        at = _boundary(text)
        yield Piece(text[:at], False)
        text = text[at:]
    yield Piece(text, True)


def _boundary(text: str) -> int:
    """Where a piece ends: before a space between letters, near PIECE_CHARACTERS.

    Byte-level pre-tokenizers break there in any case, so the tokens of the pieces are those of
    the whole. Text without such a space in the piece is cut regardless.
    """
    at = PIECE_CHARACTERS
    while (at := text.rfind(" ", 1, at)) > 0:
        if text[at - 1].isalpha() and text[at + 1].isalpha():
            return at
    return PIECE_CHARACTERS
