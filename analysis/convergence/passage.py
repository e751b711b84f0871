"""A passage of text whose tokens are coloured by the loop at which they settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.convergence.results import Convergence
from analysis.errors import AnalysisError
from analysis.page.style import GREY, new_figure, styled

TOKENS = 320
LINE_CHARACTERS = 104
LINE_INCHES = 0.19
WIDTH = 7.2
#: At this size a character of DejaVu Sans Mono is as wide as a column.
FONT_SIZE = WIDTH * 72 / LINE_CHARACTERS / 0.602
#: What stands for characters that take no room of their own.
SHOWN = {"\n": "↵", "\t": "⇥", "�": "·"}


@dataclass(frozen=True)
class Passage:
    """Consecutive tokens and the loop at which each settled; R + 1 for those that did not."""

    run: str
    epsilon: float
    texts: list[str]
    loops: np.ndarray
    recurrences: int


def passage(model: Convergence, epsilon: float, start: int = 0, tokens: int = TOKENS) -> Passage:
    """The tokens from number ``start`` of the held-out text on.

    Raises:
        AnalysisError: the text that was measured ends before.
    """
    table = model.measured.table(["text", "kl"])
    if not 0 <= start < len(table):
        raise AnalysisError(f"passage {start}: {model.run} was measured on {len(table)} tokens")
    rows = table.iloc[start : start + tokens]
    kl = np.stack(rows["kl"].to_numpy())
    return Passage(
        model.run, epsilon, list(rows["text"]), settling_loops(kl, epsilon), model.recurrences
    )


def settling_loops(kl_NR: np.ndarray, epsilon: float) -> np.ndarray:
    """First loop from which KL stays below ε, of rows over loops 2 … R; R + 1 if it never does."""
    above = ~(kl_NR < epsilon)
    last = above.shape[1] - np.argmax(above[:, ::-1], axis=1)  # 1 is loop 2
    return np.where(above.any(axis=1), last + 2, 2)


@styled
def heat_map(text: Passage) -> Figure:
    """The passage as lines of text on coloured ground, with the scale of loops below."""
    lines = _lines(text.texts)
    height = LINE_INCHES * len(lines) + 0.75
    fig = new_figure(WIDTH, height)
    fig.set_layout_engine("none")
    ax = fig.add_axes((0.0, 0.62 / height, 1.0, LINE_INCHES * len(lines) / height))
    ax.set_xlim(0, LINE_CHARACTERS)
    ax.set_ylim(len(lines), 0)
    ax.set_axis_off()
    colours = _colours(text.recurrences)
    for row, line in enumerate(lines):
        for column, characters, token in line:
            _draw(ax, row, column, characters, int(text.loops[token]), text.recurrences, colours)
    _scale(fig, height, text, colours)
    return fig


def _draw(ax, row, column, characters, loop, recurrences, colours) -> None:
    settled = loop <= recurrences
    face = colours[loop - 2] if settled else "white"
    ax.add_patch(
        Rectangle(
            (column, row + 0.06),
            len(characters),
            0.88,
            facecolor=face,
            edgecolor="white" if settled else "#d55e00",
            linewidth=0.4 if settled else 0.9,
        )
    )
    dark = settled and float(np.dot(face[:3], (0.299, 0.587, 0.114))) < 0.5
    ax.text(
        column,
        row + 0.53,
        characters.replace(" ", "\N{NO-BREAK SPACE}"),
        family="DejaVu Sans Mono",
        fontsize=FONT_SIZE,
        ha="left",
        va="center",
        color="white" if dark else "#1c1c1c",
    )


def _scale(fig: Figure, height: float, text: Passage, colours: Sequence) -> None:
    ax = fig.add_axes((0.06, 0.36 / height, 0.55, 0.12 / height))
    loops = np.arange(2, text.recurrences + 1)
    ax.imshow(loops[None], aspect="auto", cmap=ListedColormap(list(colours)), interpolation="none")
    step = max(1, len(loops) // 8)
    ax.set_xticks(np.arange(len(loops))[::step], [str(loop) for loop in loops[::step]])
    ax.set_yticks([])
    ax.grid(False)
    ax.set_frame_on(False)
    ax.tick_params(length=2, labelsize=7.5)
    ax.set_xlabel(f"loop from which KL stays below {text.epsilon:g} nats", fontsize=8)
    ax.text(
        1.06,
        0.5,
        "framed: not settled" if (text.loops > text.recurrences).any() else "",
        transform=ax.transAxes,
        va="center",
        fontsize=7.5,
        color="#d55e00",
    )
    fig.text(0.99, 0.06 / height, text.run, ha="right", fontsize=7.5, color=GREY)


def _colours(recurrences: int) -> list:
    """A colour for each of loops 2 … R, light to dark: the deeper, the darker."""
    viridis = matplotlib.colormaps["viridis_r"]
    return [viridis(0.05 + 0.9 * i / max(1, recurrences - 2)) for i in range(recurrences - 1)]


def _lines(texts: Sequence[str]) -> list[list[tuple[int, str, int]]]:
    """(column, characters, token) by line; a token moves to the next line whole, as a word does."""
    lines: list[list[tuple[int, str, int]]] = [[]]
    column = 0
    for token, text in enumerate(texts):
        shown = "".join(SHOWN.get(character, character) for character in text) or "∅"
        word = len(shown)
        for following in texts[token + 1 :]:
            if not following[:1].isalpha():
                break
            word += len(following)
        if column and column + min(word, LINE_CHARACTERS) > LINE_CHARACTERS:
            lines.append([])
            column = 0
        lines[-1].append((column, shown[:LINE_CHARACTERS], token))
        column += min(len(shown), LINE_CHARACTERS)
        if "\n" in text:
            lines.append([])
            column = 0
    return [line for line in lines if line]
