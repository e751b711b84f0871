"""A table declared once: its columns and rows, from which every form of it comes.

Rows are records at full precision, and what JSON holds; columns say which parts are shown and how.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.page import characters
from analysis.page.numbers import Format, shown


@dataclass(frozen=True)
class Column:
    """A part of every row: its key, the title of its column, and the form of its numbers.

    With a form the column holds numbers and stands right, without one it holds text.
    """

    key: str
    title: str
    form: Format | None = None

    def cell(self, row: Mapping[str, Any]) -> str:
        value = row[self.key]
        return characters.printable(shown(value, str if self.form is None else self.form))


@dataclass(frozen=True)
class Table:
    """Rows under titles. ``name`` is that of its files, ``caption`` a sentence.

    A value may be text, a number, None, or one with an interval (``value`` and ``ci95``).
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]

    def text(self) -> str:
        """Aligned columns for a terminal, under the caption."""
        lines = [[column.title for column in self.columns], *self._cells()]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        aligned = [
            "  ".join(
                cell.ljust(width) if column.form is None else cell.rjust(width)
                for cell, width, column in zip(line, widths, self.columns, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*([self.caption] if self.caption else []), *aligned])

    def html(self) -> str:
        """A table element, in a box that scrolls where it is wider than the page."""
        kinds = ["" if column.form is None else ' class="n"' for column in self.columns]

        text = characters.mathematics

        def line(cells: Sequence[str], tag: str) -> str:
            html = [
                f"<{tag}{kind}>{text(_minus(cell) if kind and tag == 'td' else cell)}</{tag}>"
                for cell, kind in zip(cells, kinds, strict=True)
            ]
            return f"<tr>{''.join(html)}</tr>"

        caption = f"<figcaption>{text(self.caption)}</figcaption>"
        caption = caption if self.caption else ""
        head = line([column.title for column in self.columns], "th")
        body = "".join(line(cells, "td") for cells in self._cells())
        return (
            f'<figure class="table">{caption}<div class="scroll" tabindex="0"><table>'
            f"<thead>{head}</thead><tbody>{body}</tbody></table></div></figure>"
        )

    def json(self) -> list[dict[str, Any]]:
        """All parts of every row, shown or not."""
        return plain(list(self.rows))

    def csv(self) -> str:
        """The shown parts at full precision; an interval is three columns, its ends the last."""
        keys = [column.key for column in self.columns]
        records = [
            {name: cell for key in keys for name, cell in _flat(key, row[key])} for row in self.rows
        ]
        return characters.csv(pd.DataFrame(records, columns=None if records else keys))

    def latex(self) -> str:
        """A booktabs tabular as it is shown, its caption as a comment above."""
        frame = pd.DataFrame(self._cells(), columns=[column.title for column in self.columns])
        numbers = [column.form is not None for column in self.columns]
        for i in np.flatnonzero(numbers):
            frame.isetitem(i, frame.iloc[:, i].map(_minus))
        kinds = "".join("r" if number else "l" for number in numbers)
        return f"% {characters.printable(self.caption)}\n{characters.latex(frame, kinds)}"

    def _cells(self) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]


def plain(value: Any) -> Any:
    """For JSON: tables and dataclasses to dictionaries, arrays to lists, nan (no value) to null."""
    if isinstance(value, Table):
        return value.json()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and np.isnan(value) else value


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The cells of a value by the names of their columns."""
    if isinstance(value, Mapping):
        for part, item in value.items():
            yield from _flat(f"{key}_{part}", item)
    elif hasattr(value, "ci95"):
        yield key, value.value
        yield from zip((f"{key}_low", f"{key}_high"), value.ci95 or (None, None), strict=True)
    else:
        yield key, characters.no_formula(value)


def _minus(cell: str) -> str:
    """A number with a minus for its hyphens, those of exponents but."""
    return re.sub(r"(?<![\w])-(?=[\d.])", "−", cell)
