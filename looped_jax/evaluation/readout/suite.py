"""What the loss cannot see: the scale of the state, who controls it, and what it costs.

A readout that normalises has no gradient along the state, so a loss behind it leaves the norm to
the residual loop, which adds to it at every pass (arXiv:2606.24898; scored/radial.py has the
expansion). Loops count from 1, the start is loop 0; losses are in nats.
"""

import math
from typing import Any

import numpy as np

from looped_jax.config import RunConfig
from looped_jax.errors import UserError
from looped_jax.evaluation.readout.scorer import SCALE_FACTORS, Gradient, readout_scorer
from looped_jax.evaluation.readout.tails import distribution
from looped_jax.evaluation.readout.throughput import throughput
from looped_jax.evaluation.scored.bootstrap import Bootstrap, estimate, estimates
from looped_jax.evaluation.scored.radial import Update, predicted
from looped_jax.evaluation.scored.windows import score
from looped_jax.evaluation.trained import Trained


def readout_suite(trained: Trained) -> dict[str, Any]:
    """Norms, radial gradients, radial and angular updates, clamps, perplexity and speed by loop.

    The summary's part holds aggregates with their intervals over documents or windows:
      condition: how the state was supervised and normalised.  loops: R, trained_loops: K.
      norm: distribution over tokens of ‖h_i‖, i = 0 … R (see tails.py).
      radial_fraction: ⟨∇_h L, h⟩ / ‖∇_h L‖‖h‖; "immediate": of the loss read from h_i, i = 1 … R;
        "objective": of the training objective, i = 1 … K.
      update: radial and tangential parts of the updates i = 1 … R, and how well they predict the
        angle and the growth of the norm.  probe: the same of c · h_K at several scales c.
      loss, perplexity: if loop i were the last, i = 1 … R.
      clamp: the loss with the norm held at that of loop 1 ("rescaled"), and with updates that have
        lost their radial part ("tangential"), and its difference to the loss without, paired.
      throughput: tokens per second at every depth.
    """
    run = trained.run
    R = check_loops(run, trained.settings.chosen_recurrences(run))
    scorer = readout_scorer(run.model, run.loss, R, trained.mesh)
    measured, text = score(trained, scorer, "readout")
    bootstrap = Bootstrap(text, trained.settings.resamples, trained.settings.seed)
    K = run.model.recurrences
    loss_RS = bootstrap.means(measured.nats)
    n_bytes = trained.data.validation_bytes.read(1, len(text)).sum()
    to_bits = len(text) / (math.log(2) * n_bytes)
    clamp = lambda nats_RN: {
        "loss": estimates(bootstrap.means(nats_RN)),
        "difference": estimates(bootstrap.means(nats_RN) - loss_RS),
    }
    return {
        "condition": condition(run),
        "seed": run.seed,
        "trained_loops": K,
        "loops": R,
        "width": run.model.width,
        "tokens": len(text),
        "bootstrap": bootstrap.describe(),
        "norm": distribution(bootstrap, measured.norm),
        "radial_fraction": {
            "immediate": radial_fraction(bootstrap, measured.immediate, measured.norm[1:]),
            "objective": radial_fraction(bootstrap, measured.objective, measured.norm[1 : K + 1]),
        },
        "update": updates(bootstrap, measured.update, measured.norm[1:]),
        "probe": probe(bootstrap, measured.probe),
        "loss": estimates(loss_RS),
        "perplexity": estimates(np.exp(loss_RS)),
        "bits_per_byte": [float(loss * to_bits) for loss in loss_RS[:, 0]],
        "clamp": {"rescaled": clamp(measured.rescaled), "tangential": clamp(measured.tangential)},
        "throughput": throughput(trained, range(1, R + 1)),
    }


def check_loops(run: RunConfig, recurrences: int) -> int:
    """R, which has to reach the trained depth.

    Raises:
      UserError: it does not.
    """
    if recurrences < run.model.recurrences:
        raise UserError(
            f"recurrences = {recurrences}; allowed for the readout suite on {run.name}: at least "
            f"the {run.model.recurrences} loops it was trained with"
        )
    return recurrences


def condition(run: RunConfig) -> dict[str, Any]:
    """What the study varies."""
    return {
        "supervision": run.loss.supervision,
        "loop_weights": list(run.loss.loop_weights),
        "norm_penalty": run.loss.norm_penalty,
        "readout_norm": run.model.readout_norm,
        "state_norm": run.model.state_norm,
        "injection": run.model.injection,
    }


def radial_fraction(
    bootstrap: Bootstrap, gradient: Gradient, norm_RN: np.ndarray
) -> dict[str, list[dict[str, Any]]]:
    """How much of a gradient lies along the state, of every loop; between 0 and 1.

    "mean": over tokens, of |⟨g, h⟩| / ‖g‖‖h‖. "pooled": |⟨G, H⟩| / ‖G‖‖H‖ with the gradients of all
    tokens as one vector. Tokens without a gradient (at loops that the objective does not look at)
    do not count.

    Behind RMSNorm it is not 0: ⟨g, h⟩ is ε / (mean h² + ε) of the same product at the normalised
    state, about 1e-8 of it where mean h² is 100, and float32 rounds by 1e-8 whatever the norm.
    """
    along_RN, size_RN = (
        np.asarray(gradient.along, np.float64),
        np.asarray(gradient.norm, np.float64),
    )
    norm_RN = np.asarray(norm_RN, np.float64)
    product_RN = size_RN * norm_RN
    with np.errstate(invalid="ignore", divide="ignore"):
        each_RN = np.abs(along_RN) / product_RN
    mean_RS = np.stack(
        [
            bootstrap.means(np.where(product_N > 0, each_N, 0.0), product_N > 0)
            for each_N, product_N in zip(each_RN, product_RN, strict=True)
        ]
    )
    square = lambda x_RN: bootstrap.means(np.square(x_RN))
    with np.errstate(invalid="ignore", divide="ignore"):
        pooled_RS = np.abs(bootstrap.means(along_RN)) / np.sqrt(square(size_RN) * square(norm_RN))
    return {"mean": estimates(mean_RS), "pooled": estimates(pooled_RS)}


def updates(bootstrap: Bootstrap, update: Update, norm_RN: np.ndarray) -> dict[str, Any]:
    """Means over tokens of the parts of every loop's update, and the errors of the expansion.

    "growth": ‖h_i‖ − ‖h_{i−1}‖. "angle_error", "growth_error": by how much the expansion misses
    angle and growth, relative to the angle and to the length of the update.
    """
    size, radial, tangential, angle = (np.asarray(part, np.float64) for part in update)
    growth = np.asarray(norm_RN, np.float64) - size
    predicted_norm, predicted_angle = predicted(size, radial, tangential)
    with np.errstate(invalid="ignore", divide="ignore"):
        angle_error = np.abs(predicted_angle - angle) / angle
        growth_error = np.abs(predicted_norm - size - growth) / np.hypot(radial, tangential)
    parts = {
        "size": size,
        "growth": growth,
        "radial": radial,
        "tangential": tangential,
        "angle": angle,
        "predicted_angle": predicted_angle,
        "angle_error": angle_error,
        "growth_error": growth_error,
    }
    return {name: estimates(bootstrap.means(part_RN)) for name, part_RN in parts.items()}


def probe(bootstrap: Bootstrap, update: Update) -> dict[str, Any]:
    """The update of the trained depth's states at other scales, their directions unchanged.

    "angle_slope": of log mean angle on log mean size, by least squares over the factors from 1 on;
    −1 where the angular step is as 1 / s. "radial_ratio": mean radial part at twice the scale over
    that at the scale, for neighbouring factors; 1 where it is constant.
    """
    parts_FS = {name: bootstrap.means(part) for name, part in update._asdict().items()}
    large = np.asarray(SCALE_FACTORS) >= 1
    with np.errstate(invalid="ignore", divide="ignore"):
        x_FS, y_FS = np.log(parts_FS["size"][large]), np.log(parts_FS["angle"][large])
        x_FS, y_FS = x_FS - x_FS.mean(0), y_FS - y_FS.mean(0)
        slope_S = np.sum(x_FS * y_FS, 0) / np.sum(np.square(x_FS), 0)
        ratio_FS = parts_FS["radial"][1:] / parts_FS["radial"][:-1]
    return {
        "factors": list(SCALE_FACTORS),
        **{name: estimates(part_FS) for name, part_FS in parts_FS.items()},
        "angle_slope": estimate(slope_S).to_json(),
        "radial_ratio": estimates(ratio_FS),
    }
