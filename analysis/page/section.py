"""A titled part of a result, from which terminal text, the page and JSON come."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from matplotlib.figure import Figure

from analysis.page import style
from analysis.page.characters import printable
from analysis.page.table import Table, plain

T = TypeVar("T")


@dataclass(frozen=True)
class Text:
    """A paragraph that is not like the others.

    kind: "answer" (the largest), "verdict", "heading", "note" (small print, on the page alone) or
    "command".  link: anchor of a section.
    """

    text: str
    kind: str = ""
    link: str = ""


@dataclass(frozen=True)
class Items:
    """A list of sentences; as warnings they stand out."""

    lines: Sequence[str]
    warnings: bool = False


@dataclass(frozen=True)
class PageFigure:
    """A figure that can be drawn at any width (inches), and what it is called.

    Attributes:
        name: of its files.
        draw: the figure at a width, such as `partial(figures.frontier, model)`.
        caption: how to read it.  alt: what it shows, for those who do not see it.
    """

    name: str
    draw: Callable[[float], Figure]
    caption: str
    alt: str

    @cached_property
    def figure(self) -> Figure:
        """At the width of a page."""
        return self.draw(style.PAGE)

    @cached_property
    def svg(self) -> bytes:
        return style.svg(self.figure)


@dataclass(frozen=True)
class Folded:
    """Blocks that the page shows when asked to, and the terminal only where it says so."""

    title: str
    content: Sequence["Block"]
    in_terminal: bool = False


Block = str | Text | Items | Table | PageFigure | Folded


@dataclass(frozen=True)
class Section:
    """Blocks in reading order. `numbers` is what JSON holds: tables, dataclasses, plain values."""

    title: str
    content: Sequence[Block]
    anchor: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """For a terminal: all but figures, small print and what is folded."""
        return "\n".join(_lines(self.content)).strip("\n")

    def json(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in self.numbers.items()}

    def find(self, kind: type[T]) -> Iterator[T]:
        """All blocks of a kind, folded ones too."""
        yield from _find(self.content, kind)


def _lines(content: Sequence[Block]) -> Iterator[str]:
    for block in content:
        match block:
            case str():
                yield printable(block)
            case Text(kind=kind) if kind != "note":
                yield printable(block.text)
            case Items():
                mark = "warning: " if block.warnings else "  "
                yield from (f"{mark}{printable(line)}" for line in block.lines)
            case Table():
                yield from ("", block.text(), "")
            case Folded(in_terminal=True):
                yield from _lines(block.content)


def _find(content: Sequence[Block], kind: type[T]) -> Iterator[T]:
    for block in content:
        if isinstance(block, kind):
            yield block
        elif isinstance(block, Folded):
            yield from _find(block.content, kind)
