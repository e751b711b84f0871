"""A self-contained HTML page out of sections. Knows nothing of scaling laws.

All text is escaped here, since names and reasons come from files; nothing is loaded from elsewhere,
so the page can be mailed, archived and printed.
"""

import base64
from collections.abc import Sequence

from analysis.page import style
from analysis.page.characters import escape, mathematics
from analysis.page.section import (
    Block,
    Folded,
    Items,
    PageFigure,
    Section,
    Text,
)
from analysis.page.table import Table

TAGS = {"heading": "h3", "command": "pre"}


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole document; the contents leave out the first section, which stands on top."""
    contents = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in sections[1:])
    body = "\n".join(_section(section) for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p class="subtitle">{escape(subtitle)}</p></header>
<nav aria-label="Contents">{contents}</nav>
<main>
{body}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.content))
    return f'<section id="{section.anchor}"><h2>{escape(section.title)}</h2>\n{blocks}</section>'


def _block(block: Block) -> str:
    match block:
        case str():
            return f"<p>{mathematics(block)}</p>"
        case Text():
            return _text(block)
        case Items():
            kind = ' class="warnings"' if block.warnings else ""
            items = "".join(f"<li>{escape(line)}</li>" for line in block.lines)
            return f"<ul{kind}>{items}</ul>"
        case Table():
            return block.html()
        case PageFigure():
            return _figure(block)
        case Folded():
            content = "".join(map(_block, block.content))
            return f"<details><summary>{escape(block.title)}</summary>{content}</details>"


def _text(block: Text) -> str:
    html = mathematics(block.text)
    if block.kind == "answer":  # the number is large, what follows it small
        number, colon, rest = html.partition(": ")
        html = f"{number} <small>{rest}</small>" if colon else html
    if block.link:
        html = f'<a href="#{escape(block.link)}">{html}</a>'
    tag = TAGS.get(block.kind, "p")
    return f'<{tag} class="{block.kind}">{html}</{tag}>' if block.kind else f"<p>{html}</p>"


def _figure(item: PageFigure) -> str:
    """Two drawings: the page's, and one for narrow screens with its parts below each other."""
    share = item.figure.get_figwidth() / style.PAGE
    narrow = _data(style.svg(item.draw(style.PHONE)))
    return (
        f'<figure><picture><source media="(max-width: 640px)" srcset="{narrow}">'
        f'<img style="width:{share:.0%}" alt="{escape(item.alt)}" src="{_data(item.svg)}">'
        f"</picture><figcaption>{mathematics(item.caption)}</figcaption></figure>"
    )


def _data(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


_CSS = """
:root { color-scheme: light; --ink: #1c1c1c; --paper: #fff; --quiet: #555; --rule: #ddd;
        --faint: #eee; --link: #0059a0; --warn: #d55e00; --warned: #fdf5ef; --code: #f6f6f6; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e4e4e4; --paper: #1a1a1a; --quiet: #aaa; --rule: #444;
          --faint: #333; --link: #7ab8ee; --warned: #2b211a; --code: #262626; }
  figure img { filter: invert(.9) hue-rotate(180deg); } }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
       color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 1040px;
       padding: 0 20px 60px; overflow-wrap: break-word; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: 1.6rem 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .5rem;
     border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
.subtitle, figcaption, .note { color: var(--quiet); }
.note { font-size: .88rem; }
.subtitle { margin: 0 0 1rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin: 1rem 0; }
nav a, main a { color: var(--link); text-decoration: none; }
nav a:hover, main a:hover { text-decoration: underline; }
.answer { font-size: 2.1rem; font-weight: 650; margin: .2rem 0 .1rem; line-height: 1.3; }
.answer small { font-size: 1.05rem; font-weight: 400; color: var(--quiet); }
.verdict { font-size: 1.1rem; margin: .2rem 0 .8rem; }
section:first-of-type h2 { border-top: 0; margin-top: .8rem; padding-top: 0; }
main p, main ul, figcaption { max-width: 860px; }
figure { margin: 1.3rem 0; max-width: 860px; }
figure img { max-width: 100%; display: block; margin: 0 auto; }
figcaption { font-size: .88rem; margin-top: .35rem; }
figure.table { max-width: none; } .table figcaption { margin: 0 0 .35rem; }
.scroll { overflow-x: auto; background: linear-gradient(to left, transparent, var(--paper) 24px)
  left / 48px 100% no-repeat local, linear-gradient(to right, transparent, var(--paper) 24px)
  right / 48px 100% no-repeat local, linear-gradient(to left, var(--rule), transparent)
  right / 12px 100% no-repeat; }  /* a shadow where there is more to the right */
td:last-child:not(.n) { overflow-wrap: anywhere; min-width: 9em; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--faint);
         vertical-align: baseline; }
thead th { border-bottom: 1.5px solid #888; font-weight: 600; white-space: nowrap; }
th.n, td.n { text-align: right; padding: .22rem .4rem .22rem .9rem; white-space: nowrap; }
td.n + td:not(.n), th.n + th:not(.n) { padding-left: .9rem; }
.warnings { border-left: 4px solid var(--warn); background: var(--warned);
            padding: .5rem 1rem .5rem 2rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--link); }
pre { font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; background: var(--code);
      padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; }
sub, sup { font-size: .72em; line-height: 0; }
@media (max-width: 640px) { body { padding: 0 14px 40px; } .answer { font-size: 1.7rem; }
  figure img { width: 100% !important; } thead th { white-space: normal; vertical-align: bottom; }
  table { font-size: .8rem; } th.n, td.n { padding-left: .5rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  figure, tr, .warnings { break-inside: avoid; } h2, h3, .table figcaption { break-after: avoid; }
  .scroll { overflow: visible; } table { font-size: .78rem; }
  details::details-content { content-visibility: visible; } }
"""
