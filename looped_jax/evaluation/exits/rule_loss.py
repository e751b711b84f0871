"""One exit rule on the held-out text: loss, loops and seconds, beside uniform depths."""

import logging
from pathlib import Path
from typing import Any

from looped_jax.adaptive import memory
from looped_jax.adaptive.calibration import rule_of
from looped_jax.adaptive.rule import check_model
from looped_jax.adaptive.signals import flops_with_exits
from looped_jax.evaluation.exits.passes import at_depth, difference, run_pass, with_rule
from looped_jax.evaluation.trained import Trained
from looped_jax.model.accounting import forward_flops_per_token

# Nats by which two programs may differ in what is the same loss.
ROUNDING = 1e-6

_log = logging.getLogger(__name__)


def loss_with_exits(trained: Trained, text: str) -> dict[str, Any]:
    """The loss suite's part on a rule, such as "change:0.02" or "auto:0.005".

    The uniform depth of equal loss is the least one whose loss is no larger than the rule's; it is
    None where no depth up to the deepest is as good.

    Raises:
      UserError: a rule or a model that is not allowed, or no calibration where one is needed.
    """
    run, model = trained.run, trained.run.model
    rule, fitted = rule_of(text, Path(trained.folder.path))
    check_model(model)
    R = rule.most or model.max_recurrences
    if run.depth.kind == "fixed":
        _log.warning(
            "%s was trained at one depth (r = %d): exits are measured on it but were never trained",
            run.name, model.recurrences,
        )  # fmt: skip
    B, T, chunk = run.evaluation.batch_size, run.data.sequence_length, run.loss.chunk
    trained.display.say(memory.describe(model, rule, B, T, chunk))
    full = run_pass(trained, at_depth(trained, R), f"loss at {R} loops")
    found = run_pass(trained, with_rule(trained, rule, fitted, R), f"loss with {rule}")
    equal = None
    for depth in range(1, R + 1):
        tried = run_pass(trained, at_depth(trained, depth), f"loss at {depth} loops")
        if tried.loss <= found.loss + ROUNDING:
            equal = tried
            break
    excess, error = difference(found, full)
    flops = lambda loops: forward_flops_per_token(model, T, loops)
    own_flops = flops_with_exits(model, T, found.loops, rule.signal)
    return {
        "rule": str(rule),
        "loss": found.loss,
        "full_depth": R,
        "full_depth_loss": full.loss,
        "over_full_depth": excess,
        "over_full_depth_standard_error": error,
        "mean_loops": found.loops,
        "tokens_per_second": found.positions / found.seconds,
        "seconds": found.seconds,
        "full_depth_seconds": full.seconds,
        "flops_per_token": own_flops,
        "flops_over_full_depth": own_flops / flops(R),
        "uniform_depth_of_equal_loss": None if equal is None else int(equal.loops),
        "flops_over_uniform_depth": None if equal is None else own_flops / flops(equal.loops),
        "seconds_over_uniform_depth": None if equal is None else found.seconds / equal.seconds,
    }
