"""Text from files (names of runs, reasons, passages) made harmless for whatever shows it.

A name may hold anything: terminal escapes, a spreadsheet formula, mathematics, half a character.
"""

import html
import re

import pandas as pd

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_LATEX = {
    "φ": r"$\varphi$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "ψ": r"$\psi$",
    "Δ": r"$\Delta$", "Σ": r"$\sum$", "∝": r"$\propto$", "×": r"$\times$", "·": r"$\cdot$",
    "±": r"$\pm$", "≈": r"$\approx$", "‖": r"$\Vert$", "−": "$-$", "–": "--", "…": r"\ldots{}",
}  # fmt: skip


def printable(text: str) -> str:
    r"""What does not print, the ends of lines and lone surrogates included, as ``\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escape(text: str) -> str:
    """Text as HTML that shows it, with what does not print made visible."""
    return html.escape(printable(text))


def mathematics(text: str) -> str:
    """The same with its symbols set: N_once, r^φ, N^−α."""
    found = re.sub(r"\bN_(once|rec|inject|eff)\b", r"N<sub>\1</sub>", escape(text))
    return re.sub(r"\^(−?[α-ω])", r"<sup>\1</sup>", found)


def csv(frame: pd.DataFrame) -> str:
    """CSV whose cells are values and never formulas: text that begins like one gets a ``'``."""
    return frame.rename(columns=no_formula).map(no_formula).to_csv(index=False)


def latex(frame: pd.DataFrame, column_format: str) -> str:
    """A ``tabular`` (booktabs) of printable text, in ASCII: other symbols become mathematics."""
    text = frame.to_latex(index=False, escape=True, column_format=column_format)
    text = re.sub(
        f"[{''.join(_SUPERSCRIPTS)}]+",
        lambda found: f"$^{{{''.join(_SUPERSCRIPTS[c] for c in found.group())}}}$",
        text,
    )
    return "".join(_LATEX.get(c, c) for c in text)


def no_formula(cell: object) -> object:
    """Text that prints and that no spreadsheet runs; anything else as it is."""
    if not isinstance(cell, str):
        return cell
    return f"'{printable(cell)}" if cell[:1] in tuple("=+-@\t\r\n") else printable(cell)
