"""The figure of what depth by token saves on the hop task, from the numbers of the benchmark.

    python -m tests.benchmarks.hops_figure tests/benchmarks/adaptive.json docs/hops.png

Nats of the answers against CPU seconds of scoring, for uniform depths 1 to 8 and for exits, each of
three seeds; seconds are divided by those of uniform depth 8 of the same seed.
"""

import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.page import style
from looped_jax.files import read_json


@style.styled
def draw(cases: dict[str, Any]) -> Figure:
    """One line and one star a seed."""
    figure = style.new_figure(style.PAGE * 0.8, 3.2)
    axes = figure.subplots()
    for i, name in enumerate(sorted(name for name in cases if name.startswith("hops"))):
        case, labelled = cases[name], i == 0
        exits = case["seconds_over_uniform"]
        depths = sorted(case["nats_by_uniform_depth"], key=int)
        of_deepest = exits[f"uniform {depths[-1]}"]
        axes.plot(
            [of_deepest / exits[f"uniform {depth}"] for depth in depths],
            [case["nats_by_uniform_depth"][depth] for depth in depths],
            "o-", color=style.ACCENT, alpha=0.5,
            label="the same depth for all tokens, 1 to 8" if labelled else None,
        )  # fmt: skip
        axes.plot(
            of_deepest, case["answers_nats"], "*", color=style.WARM, markersize=12,
            label="a depth for each token" if labelled else None,
        )  # fmt: skip
    axes.set(yscale="log", ylabel="loss of the answers (nats)", xlim=(0, 1.05))
    axes.set_xlabel("CPU seconds of scoring; 1 is depth 8 for all tokens")
    axes.legend(loc="upper right")
    return figure


if __name__ == "__main__":
    numbers, out = map(Path, sys.argv[1:])
    draw(read_json(numbers)["cases"]).savefig(out, dpi=style.PNG_DPI)
