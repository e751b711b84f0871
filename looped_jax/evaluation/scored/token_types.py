"""What kind of text a token is, told from its characters and the character before it.

| type | rule, the first that fits |
| --- | --- |
| other | the end of a document, or bytes that form no character by themselves |
| whitespace | nothing but white space |
| word start | holds a letter, and white space or a non-letter comes before its first letter |
| word continuation | holds a letter, which directly follows a letter of the token before |
| number | no letter, but a digit |
| punctuation | anything else |
"""

from collections.abc import Iterable

TYPES = ("whitespace", "punctuation", "number", "word start", "word continuation", "other")

_UNDECODABLE = "�"
# A letter after one of these goes on with the word: don't, o'clock.
_APOSTROPHES = "'’"


def token_type(text: str, before: str, *, special: bool = False) -> str:
    """The type of a token.

    Args:
      text: the token's characters.
      before: what stands before it; only its last two characters matter.
      special: whether the token marks the end of a document.
    """
    if special or _UNDECODABLE in text or not text:
        return "other"
    if text.isspace():
        return "whitespace"
    letters = [i for i, character in enumerate(text) if character.isalpha()]
    if letters:
        return "word continuation" if _within_word(before, text[: letters[0]]) else "word start"
    return "number" if any(character.isdigit() for character in text) else "punctuation"


def token_types(texts: Iterable[str], special: Iterable[bool], before: str = "") -> list[str]:
    """The types of consecutive tokens; `before` is the text in front of the first."""
    types = []
    for text, is_special in zip(texts, special, strict=True):
        types.append(token_type(text, before, special=is_special))
        before = "" if is_special else (before + text)[-2:]
    return types


def _within_word(before: str, skipped: str) -> bool:
    """Whether a letter that follows `before` and `skipped` goes on with a word."""
    joined = (before + skipped)[-2:]
    if joined and joined[-1] in _APOSTROPHES:
        joined = joined[:-1]
    return bool(joined) and joined[-1].isalpha()
