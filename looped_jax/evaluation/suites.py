"""The suites of measurements by name, and what each one is given."""

from collections.abc import Callable
from typing import Any

from looped_jax.evaluation.convergence import convergence_suite
from looped_jax.evaluation.depth import depth_suite
from looped_jax.evaluation.exits.suite import exits_suite
from looped_jax.evaluation.readout.suite import readout_suite
from looped_jax.evaluation.trained import Trained
from looped_jax.training.validation import validation_loss_of_run

# A suite returns its part of summary.json; larger tables it writes into the run folder itself.
Suite = Callable[[Trained], dict[str, Any]]


def loss_suite(trained: Trained) -> dict[str, Any]:
    """Validation loss at the config's depth: the summary's top-level `loss`."""
    result = validation_loss_of_run(trained.run, trained.params, trained.data, trained.mesh)
    return {
        "loss": result.loss,
        "loss_standard_error": result.standard_error,
        "bits_per_byte": result.bits_per_byte,
        "validation_tokens": result.tokens,
    }


SUITES: dict[str, Suite] = {
    "loss": loss_suite,
    "depth": depth_suite,
    "convergence": convergence_suite,
    "exits": exits_suite,
    "readout": readout_suite,
}
