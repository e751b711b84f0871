"""What a line says about the cost of generated tokens."""

from looped_jax.adaptive.rule import Rule
from looped_jax.generation.costs import describe_cost
from looped_jax.model.accounting import forward_flops_per_token
from tests.model.tiny import tiny


def test_flops_are_those_of_the_mean_depth_and_the_tests():
    model = tiny()
    line = describe_cost(
        model, [2, 4, 3, 3], 12.0, Rule.parse("change:0.1"), most=6, equal_depth=None
    )
    at_mean, full = (forward_flops_per_token(model, 12, depth) for depth in (3, 6))
    flops = at_mean + 3 * 8 * model.width
    assert line == (
        f"3.00 loops in the mean of at most 6, {flops:.3g} FLOPs per token: {flops / full:.2f} "
        f"of full depth, {flops / at_mean:.2f} of uniform depth at as many loops"
    )
    known = describe_cost(model, [2, 4, 3, 3], 12.0, Rule.parse("change:0.1"), 6, equal_depth=3)
    assert known == f"{line}, {flops / at_mean:.2f} of uniform depth 3, which loses no more"
