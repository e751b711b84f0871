"""The part of a report about the readout: the scale of the state, who sees it, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from analysis.page.html import Html, PageFigure, Section, folded, table
from analysis.readout import figures
from analysis.readout.claims import (
    FAILS,
    HOLDS,
    MISSING,
    OPEN,
    Claim,
    claims,
    final_norm,
    final_perplexity,
    radial,
)
from analysis.readout.results import Group, OverSeeds, group, over_seeds, readout, shapes, short
from analysis.tables.measured import measured
from analysis.tables.runs import RunTable

UNITS = {"document": "documents of the held-out text", "window": "windows of the held-out text"}


def readout_section(runs: RunTable) -> Section | None:
    """Everything about the readout of the runs that were measured; None where none was."""
    found = [readout(each) for each in measured(runs, "readout")]
    if not found:
        return None
    of_shapes = shapes(group(found))
    html, drawn, details = "", [], ""
    for groups in of_shapes:
        heading = f"<h3>{escape(shape(groups))}</h3>" if len(of_shapes) > 1 else ""
        list_of = claims(groups)
        sentences = "".join(f"<p>{escape(each)}</p>" for each in in_words(groups, list_of))
        html += heading + sentences + claims_table(list_of) + conditions_table(groups)
        drawn += readout_figures(groups, suffix=name_of(groups) if len(of_shapes) > 1 else "")
        details += heading + loops_table(groups)
    return Section(
        "What the loss cannot see",
        html,
        drawn,
        folded("Every loop", details),
        anchor="readout",
    )


def shape(groups: Sequence[Group]) -> str:
    one = groups[0]
    return f"width {one.width}, {one.trained_loops} loops"


def name_of(groups: Sequence[Group]) -> str:
    """What a shape adds to the names of its figures."""
    one = groups[0]
    return f"_d{one.width}_k{one.trained_loops}_r{one.loops}"


def readout_figures(groups: Sequence[Group], suffix: str = "") -> list[PageFigure]:
    """Every figure of one shape."""
    K, R = groups[0].trained_loops, groups[0].loops
    seeds = "Lines are means over seeds, bands reach from the least to the largest"
    drawn = [
        (
            "norm_growth",
            figures.norm_growth(groups),
            "Left: the mean norm of the state after every loop (0 is the embedding). Right: how "
            f"uneven tokens are. {seeds}; dotted: the {K} loops of training.",
        ),
        (
            "radial_fraction",
            figures.radial_fraction(groups),
            "The share of a gradient that lies along the state, mean over tokens. Left: of the "
            "loss that is read from this state. Right: of the training objective, which looks at "
            f"later loops too, up to loop {K}. Where no more of it is left than rounding and "
            f"RMSNorm's epsilon (grey), no descent step can change the scale. {seeds}.",
        ),
        (
            "readout_frontier",
            figures.frontier(groups),
            f"Quality against compute: a mark for each of 1 … {R} loops, a star at the {K} of "
            "training; lower and further left is better. Speed is the median of repeated forward "
            f"passes on {escape(groups[0].runs[0].device)}. What lies far above all trained depths "
            "is cut off.",
        ),
        (
            "angular_step",
            figures.angular_step(groups),
            "The angle by which an update turns the state against 1 / s, s its norm before. Left: "
            f"every loop from 2 to {R}, where direction and scale both change. Right: the "
            "directions of the trained depth at a quarter to 16 times their scale, which is what "
            "the lemma is about. A line a run; dotted: slope 1.",
        ),
        (
            "clamps",
            figures.clamps(groups),
            "Does the model use its scale? The loss at every loop if states after loop 1 are "
            "brought back to the norm they had there, or if updates lose the part along the state, "
            f"minus the loss without. {seeds}.",
        ),
    ]
    return [PageFigure(name + suffix, figure, caption) for name, figure, caption in drawn]


def in_words(groups: Sequence[Group], found: Sequence[Claim]) -> list[str]:
    """What holds at this scale, in numbers."""
    count = lambda verdict: sum(each.verdict == verdict for each in found)
    seeds = sorted({len(each.runs) for each in groups})
    many = " to ".join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))
    sentences = [
        f"Of {len(found)} published statements {count(HOLDS)} hold at this scale ({shape(groups)}, "
        f"{many} seed{'' if seeds == [1] else 's'} a condition), {count(FAILS)} do not hold, "
        f"{count(OPEN)} are undecided and {count(MISSING)} were not measured."
    ]
    norms = [(each.over_seeds(final_norm, log=True), each.label) for each in groups]
    largest, smallest = max(norms, key=lambda n: n[0].value), min(norms, key=lambda n: n[0].value)
    if largest != smallest:
        sentences.append(
            f"After {groups[0].trained_loops} loops the norm is largest with {largest[1]} "
            f"({largest[0].text()}) and smallest with {smallest[1]} ({smallest[0].text()})."
        )
    return sentences


def claims_table(found: Sequence[Claim]) -> str:
    """Published numbers beside those of these runs."""
    rows = [
        [
            f"{each.text} ({each.quantity})",
            Html(f"<strong>{each.verdict}</strong>") if each.verdict == HOLDS else each.verdict,
            None if each.here is None else each.here.text() + "*" * (each.here.seeds == 1),
            each.rule,
            each.published,
        ]
        for each in found
    ]
    header = (
        "statement of arXiv:2606.24898 (its number)", "at this scale", "here", "holds if",
        "there",
    )  # fmt: skip
    return table(
        header,
        rows,
        caption="A statement holds where the whole 95 % interval (Student's t over seeds, Welch's "
        "for ratios) meets the condition, does not hold where the whole interval misses it, and is "
        "undecided between. There: 44M and 129M parameters. * One seed: the interval is over the "
        "text alone and knows nothing of other seeds.",
    )


def conditions_table(groups: Sequence[Group]) -> str:
    """Every condition at its trained depth."""
    K = groups[0].trained_loops
    rows = []
    for each in groups:
        rescaled = each.over_seeds(lambda run: run.clamps["rescaled"][K - 1])
        rows.append(
            [
                each.label,
                len(each.runs),
                each.over_seeds(final_perplexity, log=True).text(4),
                each.over_seeds(final_norm, log=True).text(),
                each.over_seeds(lambda run: run.norm["tail_index"][K], log=True).text(2),
                short(each.over_seeds(radial, log=True).value, 2),
                rescaled.text(2),
            ]
        )
    header = (
        "condition", "seeds", "perplexity", f"‖h‖ at loop {K}", "tail index", "radial",
        "clamped",
    )  # fmt: skip
    unit = UNITS[groups[0].runs[0].unit]
    return table(
        header,
        rows,
        caption=f"At the {K} loops of training, with 95 % intervals over seeds (over {unit} with "
        "one seed). Tail index: Hill's over the largest 5 % of tokens, heavy tails are small. "
        "Radial: fraction of the gradient of this loop's loss. Clamped: what it costs to hold the "
        "norm at that of loop 1, in nats.",
    )


def loops_table(groups: Sequence[Group]) -> str:
    """Norm, perplexity, updates and speed of every condition at every loop."""
    rows = []
    for each in groups:
        for i in range(1, each.loops + 1):
            part = lambda name, i=i, runs=each.runs: over_seeds(
                [run.update[name][i - 1] for run in runs]
            )
            rows.append(
                [
                    each.label,
                    i,
                    short(over_seeds([r.norm["mean"][i] for r in each.runs], log=True).value),
                    short(over_seeds([r.norm["p99"][i] for r in each.runs], log=True).value),
                    over_seeds([r.perplexity[i - 1] for r in each.runs], log=True).text(4),
                    _number(part("radial")),
                    _number(part("tangential")),
                    _number(part("angle")),
                    _number(part("angle_error")),
                    f"{sum(r.tokens_per_second[i - 1] for r in each.runs) / len(each.runs):,.0f}",
                ]
            )
    header = (
        "condition", "loop", "mean ‖h‖", "99th pct.", "perplexity", "radial step",
        "tangential step", "angle", "error of the expansion", "tokens / s",
    )  # fmt: skip
    return table(
        header,
        rows,
        caption="Means over tokens and seeds. Error of the expansion: of the predicted angle, "
        "relative.",
    )


def _number(value: OverSeeds) -> str | None:
    return short(value.value) if value.value == value.value else None
