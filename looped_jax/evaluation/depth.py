"""Loss at every depth: up to its training depth a model should improve, and then?"""

import math
from typing import Any

import numpy as np

from looped_jax.evaluation.scored.bootstrap import Bootstrap, Estimate, estimates
from looped_jax.evaluation.scored.trajectory import depth_scorer
from looped_jax.evaluation.scored.windows import score
from looped_jax.evaluation.trained import Trained

# Depth is useful up to the first whose loss is this close (nats) to that of the best.
USEFUL_NATS = 0.005


def depth_suite(trained: Trained) -> dict[str, Any]:
    """Validation loss at depths around the training depth, and up to where depth is useful.

    The summary's part: for each depth the loss (nats) with its standard error and interval, and
    bits per byte; the differences to the loss at the training mean, paired over the same text; the
    best depth; the useful depth, the first whose loss is within 0.005 nats of the best on the same
    text, and its ratio to the training mean.
    """
    run, settings = trained.run, trained.settings
    depths = settings.chosen_depths(run)
    mean = _nearest(depths, run.depth.mean)
    scorer = depth_scorer(run.model, depths, run.loss.chunk, trained.mesh)
    nats_RN, text = score(trained, scorer, "depth")
    bootstrap = Bootstrap(text, settings.resamples, settings.seed)
    loss_RS = bootstrap.means(nats_RN)
    n_bytes = trained.data.validation_bytes.read(1, len(text)).sum()
    to_bits = len(text) / (math.log(2) * n_bytes)
    best_S = np.argmin(loss_RS, axis=0)
    useful_S = useful_depth(np.asarray(depths), loss_RS)
    return {
        "training": training(trained),
        "tokens": len(text),
        "bootstrap": bootstrap.describe(),
        "depths": list(depths),
        "loss": estimates(loss_RS),
        "bits_per_byte": [float(loss * to_bits) for loss in loss_RS[:, 0]],
        "against_mean": {
            "depth": depths[mean],
            "difference": estimates(loss_RS - loss_RS[mean]),
        },
        "best_depth": _of_depths(np.asarray(depths)[best_S]),
        "useful": {
            "within_nats": USEFUL_NATS,
            "depth": _of_depths(useful_S),
            "over_training_mean": _of_depths(useful_S / run.depth.mean),
        },
    }


def training(trained: Trained) -> dict[str, Any]:
    """How the depth was drawn in training."""
    depth = trained.run.depth
    return {
        "kind": depth.kind,
        "per": depth.per,
        "mean": depth.mean,
        "sigma": depth.sigma,
        "minimum": depth.minimum,
        "maximum": depth.maximum,
        "backprop_recurrences": trained.run.model.backprop_recurrences,
    }


def useful_depth(depths_R: np.ndarray, loss_RS: np.ndarray) -> np.ndarray:
    """First depth whose loss is within 0.005 nats of the best, of each column (S,)."""
    reached_RS = loss_RS - loss_RS.min(axis=0) <= USEFUL_NATS
    return depths_R[np.argmax(reached_RS, axis=0)].astype(np.float64)


def _of_depths(values_S: np.ndarray) -> dict[str, Any]:
    return Estimate.of(float(values_S[0]), np.asarray(values_S[1:], np.float64)).to_json()


def _nearest(depths: tuple[int, ...], mean: float) -> int:
    return int(np.argmin(np.abs(np.asarray(depths) - mean)))
