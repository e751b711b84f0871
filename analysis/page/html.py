"""A self-contained HTML page out of sections: text, figures, tables. Knows nothing of scaling laws.

Everything that comes from a file (run names, reasons, commands) goes through `escape`; nothing is
loaded from elsewhere, so the page can be mailed, archived and printed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from analysis.page import style as plots


@dataclass(frozen=True)
class PageFigure:
    """A figure, the name of its PNG and PDF, and a caption (HTML) that says how to read it."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Section:
    """A titled part of a page: `html`, then `figures`, then `details`; both are escaped HTML."""

    title: str
    html: str = ""
    figures: Sequence[PageFigure] = ()
    details: str = ""
    anchor: str = field(default="", kw_only=True)

    @property
    def id(self) -> str:
        return self.anchor or "-".join("".join(c for c in w if c.isalnum()) for w in self._words())

    def _words(self) -> list[str]:
        return self.title.lower().split()


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole document. `title` is text, `subtitle` HTML."""
    contents = "".join(f'<a href="#{s.id}">{escape(s.title)}</a>' for s in sections[1:])
    body = "\n".join(_section(section) for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p class="subtitle">{subtitle}</p></header>
<nav>{contents}</nav>
<main>
{body}
</main>
</body>
</html>
"""


def save_figures(sections: Sequence[Section], folder: Path) -> None:
    """Every figure of the page as PNG and PDF."""
    for section in sections:
        for item in section.figures:
            plots.save(item.figure, folder, item.name)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str = "",
    raw_header: bool = False,
) -> str:
    """An HTML table; cells are escaped, numbers stand right, None is a dash.

    `header` cells are escaped too unless `raw_header` says that they are HTML (N<sub>eff</sub>).
    """
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    cls = [' class="n"' if n else "" for n in numeric]
    head = "".join(
        f"<th{c}>{h if raw_header else escape(h)}</th>" for h, c in zip(header, cls, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{_cell(v)}</td>" for v, c in zip(row, cls, strict=True)) + "</tr>"
        for row in rows
    )
    top = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{top}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, html: str) -> str:
    """A part that is closed until it is clicked; open in print."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def scientific(value: float) -> str:
    """4.64e17 → 4.64×10<sup>17</sup>."""
    mantissa, exponent = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = f"10<sup>{int(exponent)}</sup>"
    return power if mantissa == "1" else f"{mantissa}×{power}"


class Html(str):
    """A table cell that is HTML already."""

    __slots__ = ()


def _section(section: Section) -> str:
    figures = "".join(_figure(item) for item in section.figures)
    return (
        f'<section id="{section.id}"><h2>{escape(section.title)}</h2>\n'
        f"{section.html}\n{figures}\n{section.details}</section>"
    )


def _figure(item: PageFigure) -> str:
    data = base64.b64encode(plots.svg(item.figure)).decode("ascii")
    inches = item.figure.get_figwidth()
    return (
        f'<figure id="figure-{escape(item.name)}"><img style="width:{inches / 7.2:.0%}" '
        f'alt="{escape(item.name.replace("_", " "))}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{item.caption}</figcaption></figure>\n"
    )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, Html):
        return value
    return _MINUS.sub("−", escape(str(value)))


def _is_number(value: object) -> bool:
    if value is None or isinstance(value, int | float | Html):
        return True
    first = str(value).lstrip("+-−<≈ ")[:1]
    return first.isdigit()


# A hyphen before a number and not within a word, a date or a name.
_MINUS = re.compile(r"(?<![\w.)-])-(?=\d)")

_CSS = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
       color: #1c1c1c; background: #fff; margin: 0 auto; max-width: 1040px; padding: 0 20px 60px; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: 1.6rem 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .5rem; border-top: 1px solid #ddd; }
h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
.subtitle, figcaption, caption, .note { color: #555; }
.note { font-size: .88rem; }
.subtitle { margin: 0 0 1rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin: 1rem 0; }
nav a, main a { color: #0059a0; text-decoration: none; }
nav a:hover, main a:hover { text-decoration: underline; }
.answer { font-size: 2.1rem; font-weight: 650; margin: .2rem 0 .1rem; letter-spacing: -.01em; }
.answer small { font-size: 1.05rem; font-weight: 400; color: #444; letter-spacing: 0; }
.verdict { font-size: 1.1rem; margin: .2rem 0 .8rem; }
section:first-of-type h2 { border-top: 0; margin-top: .8rem; padding-top: 0; }
main p, figcaption, caption { max-width: 860px; }
figure { margin: 1.3rem 0; max-width: 860px; }
figure img { max-width: 100%; display: block; margin: 0 auto; }
figcaption { font-size: .88rem; margin-top: .35rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .35rem; }
th, td { text-align: left; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid #eee;
         vertical-align: baseline; }
thead th { border-bottom: 1.5px solid #888; font-weight: 600; white-space: nowrap; }
th.n, td.n { text-align: right; padding: .22rem .4rem .22rem .9rem; white-space: nowrap; }
.warnings { border-left: 4px solid #d55e00; background: #fdf5ef; padding: .5rem 1rem; }
.warnings ul { margin: .2rem 0; padding-left: 1.1rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: #0059a0; }
pre, code { font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: #f6f6f6; padding: .7rem .9rem; overflow-x: auto; white-space: pre-wrap;
      overflow-wrap: anywhere; }
sub, sup { font-size: .72em; line-height: 0; }
td.n + td:not(.n), th.n + th:not(.n) { padding-left: .9rem; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } nav { display: none; }
  figure, tr { break-inside: avoid; } h2, caption { break-after: avoid; }
  details::details-content { content-visibility: visible; } }
"""
