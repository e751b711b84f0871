"""The suites of measurements by name, and what each one is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import RenderableType

from looped_jax.evaluation import shown
from looped_jax.evaluation.convergence import convergence_suite
from looped_jax.evaluation.depth import depth_suite
from looped_jax.evaluation.exits.rule_loss import loss_with_exits
from looped_jax.evaluation.exits.suite import exits_suite
from looped_jax.evaluation.readout.suite import readout_suite
from looped_jax.evaluation.trained import Trained
from looped_jax.training.validation import validation_loss_of_run


class Suite(NamedTuple):
    """A suite of measurements.

    Attributes:
      measure: returns its part of summary.json; larger tables it writes into the run folder itself.
      show: what of that part a terminal shows.
    """

    measure: Callable[[Trained], dict[str, Any]]
    show: Callable[[dict[str, Any]], list[RenderableType]]


def loss_suite(trained: Trained) -> dict[str, Any]:
    """Validation loss at the config's depth: the summary's top-level `loss`.

    With an exit rule in the settings also `exit`: what scoring with it loses and saves.
    """
    result = validation_loss_of_run(trained.run, trained.params, trained.data, trained.mesh)
    result.write_windows(trained.out)
    found: dict[str, Any] = {
        "loss": result.loss,
        "loss_standard_error": result.standard_error,
        "bits_per_byte": result.bits_per_byte,
        "validation_tokens": result.tokens,
    }
    if trained.settings.exit:
        found["exit"] = loss_with_exits(trained, trained.settings.exit)
    return found


SUITES: dict[str, Suite] = {
    "loss": Suite(loss_suite, shown.loss),
    "depth": Suite(depth_suite, shown.depth),
    "convergence": Suite(convergence_suite, shown.convergence),
    "exits": Suite(exits_suite, shown.exits),
    "readout": Suite(readout_suite, shown.readout),
}
