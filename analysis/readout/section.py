"""What the loss cannot see of the state: its scale, who sees it, what it costs.

In words, tables and figures, for each shape of model that was measured.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from analysis.page.numbers import significant
from analysis.page.section import Block, Folded, PageFigure, Section, Text
from analysis.page.table import Column, Table
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
from analysis.readout.results import Group, group, shapes
from analysis.tables.measured import TEXT_UNITS, measured
from analysis.tables.runs import RunTable

TWO, THREE, FOUR = map(significant, (2, 3, 4))


def readout_section(table: RunTable) -> Section | None:
    """Everything about the readout of the runs that were measured; None where none was."""
    of_shapes = shapes(group(measured(table, "readout")))
    if not of_shapes:
        return None
    content: list[Block] = []
    numbers = []
    for groups in of_shapes:
        suffix = name_of(groups) if len(of_shapes) > 1 else ""
        statements, conditions = claims(groups), conditions_table(groups, suffix)
        if suffix:
            content.append(Text(shape(groups).capitalize(), "heading"))
        content += [
            *in_words(groups, statements),
            claims_table(statements, suffix),
            conditions,
            *readout_figures(groups, suffix),
            Folded("Every loop", [loops_table(groups, suffix)]),
        ]
        one = groups[0]
        numbers.append(
            {
                "width": one.width,
                "trained_loops": one.trained_loops,
                "loops": one.loops,
                "conditions": conditions,
                "claims": statements,
            }
        )
    title = "What the loss cannot see"
    return Section(title, content, anchor="readout", numbers={"shapes": numbers})


def shape(groups: Sequence[Group]) -> str:
    one = groups[0]
    return f"width {one.width}, {one.trained_loops} loops"


def name_of(groups: Sequence[Group]) -> str:
    """What a shape adds to the names of its figures and tables."""
    one = groups[0]
    return f"_d{one.width}_k{one.trained_loops}_r{one.loops}"


def readout_figures(groups: Sequence[Group], suffix: str = "") -> list[PageFigure]:
    """Every figure of one shape."""
    K, R = groups[0].trained_loops, groups[0].loops
    seeds = "Lines are means over seeds, bands reach from the least to the largest"
    of = f"a line for each of {len(groups)} conditions: {', '.join(g.label for g in groups)}"
    drawn = [
        (
            "norm_growth",
            figures.norm_growth,
            "Left: the mean norm of the state after every loop (0 is the embedding). Right: how "
            f"uneven tokens are. {seeds}; dotted: the {K} loops of training.",
            "Two line charts against the loop: mean norm of the state, and the ratio of its 99th "
            "percentile to its median",
        ),
        (
            "radial_fraction",
            figures.radial_fraction,
            "The share of a gradient that lies along the state, mean over tokens. Left: of the "
            "loss that is read from this state. Right: of the training objective, which looks at "
            f"later loops too, up to loop {K}. Where no more of it is left than rounding and "
            f"RMSNorm's epsilon (grey), no descent step can change the scale. {seeds}.",
            "Two line charts against the loop, logarithmic: share of the gradient along the state, "
            "of the loss read from it and of the training objective",
        ),
        (
            "readout_frontier",
            figures.frontier,
            f"Quality against compute: a mark for each of 1 … {R} loops, a star at the {K} of "
            "training; lower and further left is better. Speed is the median of repeated forward "
            f"passes on {groups[0].runs[0]['throughput.device']}. What lies far above all trained "
            "depths is cut off.",
            "Two line charts: perplexity against measured tokens per second and against forward "
            "FLOPs per token",
        ),
        (
            "angular_step",
            figures.angular_step,
            "The angle by which an update turns the state against 1 / s, s its norm before. Left: "
            f"every loop from 2 to {R}, where direction and scale both change. Right: the "
            "directions of the trained depth at a quarter to 16 times their scale, which is what "
            "the lemma is about. A line a run; dotted: slope 1.",
            "Two logarithmic charts: angle of an update against one over the norm of the state, by "
            "loop and by scale",
        ),
        (
            "clamps",
            figures.clamps,
            "Does the model use its scale? The loss at every loop if states after loop 1 are "
            "brought back to the norm they had there, or if updates lose the part along the state, "
            f"minus the loss without. {seeds}.",
            "Two line charts against the loop: loss with the norm held, and without radial "
            "updates, minus the loss without a clamp",
        ),
    ]
    return [
        PageFigure(name + suffix, partial(draw, groups), caption, f"{alt}; {of}.")
        for name, draw, caption, alt in drawn
    ]


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


def claims_table(found: Sequence[Claim], suffix: str = "") -> Table:
    """Published numbers beside those of these runs."""
    return Table(
        f"readout_claims{suffix}",
        "A statement holds where the whole 95 % interval (Student's t over seeds, Welch's for "
        "ratios) meets the condition, does not hold where the whole interval misses it, and is "
        "undecided between. There: 44M and 129M parameters. With one seed the interval is over the "
        "text alone and knows nothing of other seeds.",
        (
            Column("statement", "statement of arXiv:2606.24898 (its number)"),
            Column("verdict", "at this scale"),
            Column("here", "here", THREE),
            Column("seeds", "seeds", "d"),
            Column("rule", "holds if"),
            Column("published", "there"),
        ),
        [
            {
                **vars(each),
                "statement": f"{each.text} ({each.quantity})",
                "seeds": each.here and each.here.seeds,
            }
            for each in found
        ],
    )


def conditions_table(groups: Sequence[Group], suffix: str = "") -> Table:
    """Every condition at its trained depth; its rows hold what JSON says of a condition."""
    K = groups[0].trained_loops
    return Table(
        f"readout_conditions{suffix}",
        f"At the {K} loops of training, with 95 % intervals over seeds (over "
        f"{TEXT_UNITS[groups[0].runs[0]['bootstrap.unit']]} with one seed). Tail index: Hill's "
        "over the largest 5 % of tokens, heavy tails are small. Radial: fraction of the gradient "
        "of this loop's loss. Clamped: what it costs to hold the norm at that of loop 1, in nats.",
        (
            Column("label", "condition"),
            Column("n_seeds", "seeds", "d"),
            Column("perplexity", "perplexity", FOUR),
            Column("final_norm", f"‖h‖ at loop {K}", THREE),
            Column("tail_index", "tail index", TWO),
            Column("radial_fraction", "radial", TWO),
            Column("clamped", "clamped", TWO),
        ),
        [_condition(each, K) for each in groups],
    )


def _condition(each: Group, K: int) -> dict[str, Any]:
    mean = lambda quantity: each.over_seeds(quantity, log=True)
    at = lambda path, i: mean(lambda run: run[path][i])
    speed, flops = "throughput.tokens_per_second", "throughput.flops_per_token"
    return {
        "label": each.label,
        **vars(each.condition),
        "runs": [run.run for run in each.runs],
        "seeds": [run["seed"] for run in each.runs],
        "n_seeds": len(each.runs),
        "final_norm": mean(final_norm),
        "perplexity": mean(final_perplexity),
        "radial_fraction": mean(radial),
        "tail_index": at("norm.tail_index", K),
        "clamped": each.over_seeds(lambda run: run["clamp.rescaled.difference"][K - 1]),
        "angle_slope": each.over_seeds(lambda run: run["probe.angle_slope"]),
        "norm_by_loop": [at("norm.mean", i) for i in range(1, each.loops + 1)],
        "frontier": [
            {
                "loops": i + 1,
                "perplexity": at("perplexity", i),
                "tokens_per_second": [run[speed][i] for run in each.runs],
                "flops_per_token": each.runs[0][flops][i],
            }
            for i in range(each.loops)
        ],
    }


def loops_table(groups: Sequence[Group], suffix: str = "") -> Table:
    """Norm, perplexity, updates and speed of every condition at every loop."""
    return Table(
        f"readout_loops{suffix}",
        "Means over tokens and seeds. Error of the expansion: of the predicted angle, relative.",
        (
            Column("condition", "condition"),
            Column("loop", "loop", "d"),
            Column("norm", "mean ‖h‖", THREE),
            Column("p99", "99th pct.", THREE),
            Column("perplexity", "perplexity", FOUR),
            Column("radial", "radial step", THREE),
            Column("tangential", "tangential step", THREE),
            Column("angle", "angle", THREE),
            Column("angle_error", "error of the expansion", THREE),
            Column("tokens_per_second", "tokens / s", ",.0f"),
        ),
        [_loop(each, i) for each in groups for i in range(1, each.loops + 1)],
    )


def _loop(each: Group, i: int) -> dict[str, Any]:
    at = lambda path, i, log=False: each.over_seeds(lambda run: run[path][i], log=log)
    updates = ("radial", "tangential", "angle", "angle_error")
    speeds = [run["throughput.tokens_per_second"][i - 1] for run in each.runs]
    return {
        "condition": each.label,
        "loop": i,
        "norm": at("norm.mean", i, log=True).value,
        "p99": at("norm.p99", i, log=True).value,
        "perplexity": at("perplexity", i - 1, log=True),
        **{name: at(f"update.{name}", i - 1).value for name in updates},
        "tokens_per_second": sum(speeds) / len(speeds),
    }
