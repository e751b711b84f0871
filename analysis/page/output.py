"""What a command leaves: sections on the terminal, figures, tables and numbers in a folder."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from analysis.page import style
from analysis.page.section import PageFigure, Section
from analysis.page.table import Table
from analysis.tables.files import dumps, write_bytes, write_text

#: How a table is written: the ending of its file, and its form.
TABLE_FORMS = {"csv": ("csv", Table.csv), "latex": ("tex", Table.latex)}

Named = TypeVar("Named", PageFigure, Table)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """``--out`` and ``--tables``."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    add_tables_argument(parser)


def add_tables_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables",
        choices=TABLE_FORMS,
        help="write every table to the output folder's tables/ too, one file each",
    )


def deliver(
    sections: Sequence[Section | None],
    args: argparse.Namespace,
    name: str,
    document: Mapping[str, Any],
    figures: bool = True,
) -> None:
    """Write figures, tables (where asked for) and `name`, the JSON document, last; print it all.

    A section that is None has nothing to say.
    """
    there = [section for section in sections if section is not None]
    n_figures = write_figures(there, args.out) if figures else 0
    n_tables = write_tables(there, args.out, args.tables)
    write_text(args.out / name, dumps(dict(document)))
    print("\n\n".join(filter(None, (section.text() for section in there))))
    beside = [f"{n} {what}" for n, what in ((n_figures, "figures"), (n_tables, "tables")) if n]
    print(f"\nwrote {args.out / name}{' and ' + ', '.join(beside) if beside else ''}")


def write_figures(sections: Sequence[Section], out: Path) -> int:
    """Every figure as SVG, PDF and PNG below figures/; their number."""
    drawn = _files(item for section in sections for item in section.find(PageFigure))
    for name, item in drawn.items():
        write_bytes(out / "figures" / f"{name}.svg", item.svg)
        style.save(item.figure, out / "figures", name)
    return len(drawn)


def write_tables(sections: Sequence[Section], out: Path, form: str | None) -> int:
    """Every table below tables/ in the form that was asked for; their number."""
    if form is None:
        return 0
    ending, convert = TABLE_FORMS[form]
    tables = _files(table for section in sections for table in section.find(Table))
    for name, table in tables.items():
        write_text(out / "tables" / f"{name}.{ending}", convert(table))
    return len(tables)


def _files(items: Iterable[Named]) -> dict[str, Named]:
    """By a name that is safe for a file, and no other's: names may hold those of runs."""
    named: dict[str, Named] = {}
    for item in items:
        name = re.sub(r"[^\w.=+-]", "_", item.name).lstrip(".")[:100]
        unique, n = name, 1
        while unique.lower() in {other.lower() for other in named}:
            unique, n = f"{name}_{n + 1}", n + 1
        named[unique] = item
    return named
