"""What generated tokens cost: forward FLOPs by their loops, against depths that all tokens run."""

from collections.abc import Sequence

from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.signals import flops_with_exits
from looped_jax.model.accounting import forward_flops_per_token
from looped_jax.model.config import ModelConfig


def describe_cost(
    model: ModelConfig,
    loops: Sequence[int],
    length: float,
    rule: Rule,
    most: int,
    equal_depth: int | None,
) -> str:
    """Mean loops and FLOPs per token against full depth, and against uniform depths.

    Args:
      loops: of each token.
      length: tokens of a text in the mean, which attention is counted for.
      most: loops of full depth.
      equal_depth: the uniform depth of equal loss, or None where it is not known.
    """
    mean, T = sum(loops) / len(loops), round(length)
    flops = lambda depth: forward_flops_per_token(model, T, depth)
    adaptive = flops_with_exits(model, T, mean, rule.signal)
    line = (
        f"{mean:.2f} loops in the mean of at most {most}, {adaptive:.3g} FLOPs per token: "
        f"{adaptive / flops(most):.2f} of full depth, {adaptive / flops(mean):.2f} of uniform "
        "depth at as many loops"
    )
    if equal_depth is None:
        return line
    share = adaptive / flops(equal_depth)
    return f"{line}, {share:.2f} of uniform depth {equal_depth}, which loses no more"
