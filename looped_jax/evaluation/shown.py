"""What a suite measured, for a terminal; all numbers of it stand in summary.json."""

from collections.abc import Collection
from typing import Any

from rich.console import RenderableType
from rich.table import Table

Result = dict[str, Any]  # a suite's part of summary.json


def loss(result: Result) -> list[RenderableType]:
    """The validation loss, and what an exit rule makes of it."""
    lines: list[RenderableType] = [
        f"loss {result['loss']:.4f} ± {result['loss_standard_error']:.4f} nats "
        f"({result['bits_per_byte']:.4f} bits per byte) on {result['validation_tokens']:,} tokens"
    ]
    return [*lines, exit_rule(result["exit"])] if "exit" in result else lines


def exit_rule(found: Result) -> str:
    """What scoring with an exit rule loses and saves, in two lines."""
    depth = found["uniform_depth_of_equal_loss"]
    if depth is None:
        against = f"no uniform depth up to {found['full_depth']} has a loss as low"
    else:
        against = (
            f"{depth} loops for every token have a loss as low: of their FLOPs "
            f"{found['flops_over_uniform_depth']:.2f}, of their seconds "
            f"{found['seconds_over_uniform_depth']:.2f}"
        )
    return (
        f"exit {found['rule']}: {found['loss']:.4f} nats, "
        f"{found['over_full_depth']:+.4f} ± {1.96 * found['over_full_depth_standard_error']:.4f} "
        f"over {found['full_depth']} loops; {found['mean_loops']:.2f} loops in the mean, "
        f"{found['tokens_per_second']:.3g} tokens/s, {found['flops_over_full_depth']:.2f} of the "
        f"FLOPs and {found['seconds'] / found['full_depth_seconds']:.2f} of the seconds of full "
        f"depth\n{against}"
    )


def depth(result: Result) -> list[RenderableType]:
    """Loss at every depth, the best one, and up to where depth is useful."""
    table = plain_table("r", "loss", "95 % interval", "bits per byte", "", text=("",))
    trained = result["against_mean"]["depth"]
    for r, nats, bits in zip(
        result["depths"], result["loss"], result["bits_per_byte"], strict=True
    ):
        mark = "← trained" if r == trained else ""
        table.add_row(str(r), *_with_interval(nats, ".4f"), f"{bits:.4f}", mark)
    useful = result["useful"]
    return [
        f"loss by depth in nats, {_text_of(result)}",
        table,
        f"best at r = {_value(result['best_depth'])}; within "
        f"{useful['within_nats']:g} nats of it from r = {_value(useful['depth'])}",
    ]


def convergence(result: Result) -> list[RenderableType]:
    """The loop at which half of the tokens have settled, at every threshold."""
    R = result["recurrences"]
    table = plain_table("ε (nats)", "median loop", "95 % interval", f"not settled by {R}")
    for at in result["settled"]:
        median, interval = _with_interval(at["median"], "g")
        unsettled = at["unsettled"] / at["tokens"]
        # The median of R + 1 stands for tokens that have not settled.
        shown = f"over {R}" if at["median"]["value"] == R + 1 else median
        table.add_row(f"{at['epsilon']:g}", shown, interval, f"{unsettled:.1%}")
    return [
        f"loop from which KL(p_i || p_(i-1)) stays below ε, {R} loops, {_text_of(result)}",
        table,
    ]


def exits(result: Result) -> list[RenderableType]:
    """Loops and FLOPs that each policy needs for the loss that uniform depth reaches."""
    table = plain_table(
        "policy", "carry", "loops", "95 % interval", "FLOPs", "95 % interval",
        text=("policy", "carry"),
    )  # fmt: skip
    for row in result["at_equal_quality"]:
        costs = (row["loops_over_uniform"], row["flops_over_uniform"])
        table.add_row(
            row["policy"], row["carry"], *(part for cost in costs for part in _with_interval(cost))
        )
    return [
        "loops and FLOPs over those of uniform depth at equal loss (99 % of what depth brings), "
        f"{_text_of(result)}",
        table,
    ]


def readout(result: Result) -> list[RenderableType]:
    """Norm, radial part of the gradient and loss by loop, and what holding the norm changes."""
    table = plain_table("loop", "norm", "95 % interval", "radial", "loss (nats)", "norm held")
    rows = zip(
        result["norm"]["mean"][1:],  # the first is of the start
        result["radial_fraction"]["immediate"]["mean"],
        result["loss"],
        result["clamp"]["rescaled"]["difference"],
        strict=True,
    )
    for loop, (norm, radial, nats, held) in enumerate(rows, 1):
        numbers = (_value(radial, ".2g"), _value(nats, ".4f"), _value(held, "+.4f"))
        table.add_row(str(loop), *_with_interval(norm, ".4g"), *numbers)
    return [
        "norm of the state, radial part of the loss's gradient, loss, and what it changes by with "
        f"the norm of loop 1, trained at {result['trained_loops']} loops, {_text_of(result)}",
        table,
    ]


def plain_table(*names: str, text: Collection[str] = ()) -> Table:
    """Columns without lines, right-aligned but for those named in `text`; no number is cut off."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in text else "right", no_wrap=True)
    return table


def _text_of(result: Result) -> str:
    bootstrap = result["bootstrap"]
    return f"{result['tokens']:,} tokens, {bootstrap['units']:,} {bootstrap['unit']}s"


def _value(estimate: Result, form: str = "g") -> str:
    """Its value; a dash where there is none."""
    return "–" if estimate["value"] is None else f"{estimate['value']:{form}}"


def _with_interval(estimate: Result, form: str = ".2f") -> tuple[str, str]:
    """Its value and its 95 % interval; dashes where there is none."""
    low, high = estimate["ci95"]
    interval = "–" if low is None or high is None else f"{low:{form}} to {high:{form}}"
    return _value(estimate, form), interval
