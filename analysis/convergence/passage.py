"""A passage of text whose tokens are coloured by the loop at which they settled."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.errors import AnalysisError, InputError
from analysis.page.style import GREY, PAGE, WARM, drawable, literal, new_figure, styled
from analysis.tables.measured import Measured

TOKENS = 320
LINE_INCHES = 0.19
#: A character of DejaVu Sans Mono at FONT_SIZE is so wide.
CHARACTER_INCHES, FONT_SIZE, FAMILY = PAGE / 104, PAGE / 104 * 72 / 0.602, "DejaVu Sans Mono"
#: What stands for characters that take no room of their own.
SHOWN = {"\n": "↵", "\t": "⇥", "\N{REPLACEMENT CHARACTER}": "·"}


@dataclass(frozen=True)
class Passage:
    """Consecutive tokens and the loop at which each settled; R + 1 for those that did not."""

    run: str
    epsilon: float
    texts: list[str]
    loops: np.ndarray
    recurrences: int


def passage(run: Measured, epsilon: float, start: int = 0, tokens: int = TOKENS) -> Passage:
    """The tokens from number ``start`` of the held-out text on.

    Raises:
        AnalysisError: the text that was measured ends before.
        InputError: the run's table of tokens cannot be used.
    """
    table = run.table(run["table"], ["text", "kl"])
    if not 0 <= start < len(table):
        raise AnalysisError(f"passage {start}: {run.run} was measured on {len(table)} tokens")
    rows = table.iloc[start : start + tokens]
    loops = run["recurrences"] - 1
    if any(np.shape(each) != (loops,) for each in rows["kl"]):
        raise InputError(f"{run.folder / run['table']}: kl is not {loops} numbers a token")
    kl, texts = np.stack(rows["kl"].to_numpy()), [str(text) for text in rows["text"]]
    return Passage(run.run, epsilon, texts, settling_loops(kl, epsilon), run["recurrences"])


def settling_loops(kl_NR: np.ndarray, epsilon: float) -> np.ndarray:
    """First loop from which KL stays below ε, of rows over loops 2 … R; R + 1 if it never does."""
    above = ~(kl_NR < epsilon)
    last = above.shape[1] - np.argmax(above[:, ::-1], axis=1)  # 1 is loop 2
    return np.where(above.any(axis=1), last + 2, 2)


@styled
def heat_map(text: Passage, width: float = PAGE) -> Figure:
    """The passage as lines of text on coloured ground, with the scale of loops below."""
    characters = int(width / CHARACTER_INCHES)
    lines = _lines(text.texts, characters)
    height = LINE_INCHES * len(lines) + 0.75
    fig = new_figure(width, height)
    fig.set_layout_engine("none")
    ax = fig.add_axes((0.0, 0.62 / height, 1.0, LINE_INCHES * len(lines) / height))
    ax.set_xlim(0, characters)
    ax.set_ylim(len(lines), 0)
    ax.set_axis_off()
    # A colour for each of loops 2 … R, light to dark: the deeper, the darker.
    spread = np.linspace(0.05, 0.95, max(1, text.recurrences - 1))
    colours = matplotlib.colormaps["viridis_r"](spread)
    for row, line in enumerate(lines):
        for column, shown, token in line:
            loop = int(text.loops[token])
            _draw(ax, row, column, shown, colours[loop - 2] if loop <= text.recurrences else None)
    _scale(fig, height, text, colours)
    return fig


def _draw(ax: Axes, row: int, column: int, characters: str, face: np.ndarray | None) -> None:
    """A token on its colour, or framed without one."""
    edge = {"edgecolor": WARM, "linewidth": 0.9} if face is None else {"linewidth": 0}
    corner, size = (column, row + 0.06), (len(characters), 0.88)
    ax.add_patch(Rectangle(corner, *size, facecolor="white" if face is None else face, **edge))
    dark = face is not None and float(np.dot(face[:3], (0.299, 0.587, 0.114))) < 0.5
    ax.text(
        column, row + 0.53, characters.replace(" ", "\N{NO-BREAK SPACE}"), family=FAMILY,
        fontsize=FONT_SIZE, va="center", color="white" if dark else "#1c1c1c", parse_math=False,
    )  # fmt: skip


def _scale(fig: Figure, height: float, text: Passage, colours: np.ndarray) -> None:
    ax = fig.add_axes((0.06, 0.36 / height, 0.55, 0.12 / height))
    loops = np.arange(2, text.recurrences + 1)
    ax.imshow(loops[None], aspect="auto", cmap=ListedColormap(list(colours)), interpolation="none")
    step = max(1, len(loops) // 8)
    ax.set_xticks(np.arange(len(loops))[::step], [str(loop) for loop in loops[::step]])
    ax.set_yticks([])
    ax.grid(False)
    ax.set_frame_on(False)
    ax.tick_params(length=2, labelsize=7.5)
    ax.set_xlabel(f"loop from which KL stays below {text.epsilon:g} nats", fontsize=8, loc="left")
    if (text.loops > text.recurrences).any():
        where = ax.transAxes
        ax.text(1.06, 0.5, "framed: not settled", transform=where, color=WARM, fontsize=7.5)
    if fig.get_figwidth() >= PAGE:  # on a phone there is no room beside the scale's label
        fig.text(0.99, 0.06 / height, literal(text.run), ha="right", fontsize=7.5, color=GREY)


def _lines(texts: Sequence[str], most: int) -> list[list[tuple[int, str, int]]]:
    """(column, characters, token) by line; a token moves to the next line whole, as a word does."""
    lines: list[list[tuple[int, str, int]]] = [[]]
    column = 0
    for token, text in enumerate(texts):
        shown = drawable("".join(SHOWN.get(c, c) for c in text), FAMILY) or "∅"
        word = len(shown)
        for following in texts[token + 1 :]:
            if not following[:1].isalpha():
                break
            word += len(following)
        if column and column + min(word, most) > most:
            lines.append([])
            column = 0
        lines[-1].append((column, shown[:most], token))
        column += min(len(shown), most)
        if "\n" in text:
            lines.append([])
            column = 0
    return [line for line in lines if line]
