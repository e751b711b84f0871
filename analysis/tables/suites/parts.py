"""What the suites of ``python -m looped_jax.evaluate`` leave in a run's summary.json.

The contract between the two packages, which share no code: a summary's parts are read by it, and
the tests of both sides hold what is written to it. Written as ``schema`` describes. Losses are in
nats, FLOPs are forward and per token unless they say otherwise; loops count from 1.
"""

from typing import Any, Literal

from analysis.tables.suites.schema import Sized

#: A number, its standard error and its 95 % interval over the resampled text.
ESTIMATE = {
    "value": float | None,
    "standard_error": float | None,
    "ci95": (float | None, float | None),
}


#: One for each depth, each of the loops 2 … R, and each of the loops 1 … R, 1 … K, 0 … R.
DEPTHS, LOOPS = Sized([ESTIMATE], "depths"), Sized([ESTIMATE], "loops")
UP_TO_R, UP_TO_K = Sized([ESTIMATE], "R"), Sized([ESTIMATE], "K")
FROM_ZERO, FACTORS = Sized([ESTIMATE], "R", 1), Sized([ESTIMATE], "factors")

#: What was resampled: ``units`` documents or windows.
BOOTSTRAP = {
    "unit": Literal["document", "window"],
    "units": int,
    "resamples": int,
    "seed": int,
}

#: How the depth was drawn in training.
TRAINING = {
    "kind": str,
    "per": str,
    "mean": float,
    "sigma": float,
    "minimum": int,
    "maximum": int,
    "backprop_recurrences": int,
}

#: Its part is the top of the summary itself.
LOSS = {
    "loss": float,
    "loss_standard_error": float,
    "bits_per_byte": float,
    "validation_tokens": int,
}

DEPTH = {
    "training": TRAINING,
    "tokens": int,
    "bootstrap": BOOTSTRAP,
    "depths": Sized([int], "depths"),
    "loss": DEPTHS,
    "bits_per_byte": Sized([float], "depths"),
    "against_mean": {"depth": int, "difference": DEPTHS},
    "best_depth": ESTIMATE,
    "useful": {"within_nats": float, "depth": ESTIMATE, "over_training_mean": ESTIMATE},
}

#: Over tokens, at each of the loops 2 … R; quantiles by their level.
PER_LOOP = {
    "mean": LOOPS,
    "median": LOOPS,
    "quantiles": {...: Sized([float], "loops")},
}

#: How many of these tokens settle at each of the loops 2 … R, and how many not within R.
SETTLED_TOKENS = {
    "tokens": int,
    "histogram": Sized([int], "loops"),
    "unsettled": int,
    "median": ESTIMATE,
    "tail_at_mean": ESTIMATE,
}

#: At one threshold on the KL divergence (nats): all tokens, and groups of them by name.
SETTLED = {
    **SETTLED_TOKENS,
    "epsilon": float,
    "by_type": {...: SETTLED_TOKENS},
    "by_loss": {...: SETTLED_TOKENS},
    "by_position": {...: SETTLED_TOKENS},
    "by_frequency": {...: SETTLED_TOKENS},
}

#: The table has a row for each token.
CONVERGENCE = {
    "training": TRAINING,
    "recurrences": Sized(int, "loops", 1),
    "mean_depth": int,
    "tokens": int,
    "table": Literal["convergence.parquet"],
    "bootstrap": BOOTSTRAP,
    "loops": Sized([int], "loops"),
    "kl": PER_LOOP,
    "relative_change": PER_LOOP,
    "angle": PER_LOOP,
    "argmax_changed": LOOPS,
    "settled": Sized([SETTLED], "thresholds"),
}

#: A policy at one threshold.
EXIT_POINT = {
    "policy": str,
    "carry": str,
    "threshold": float,
    "mean_loops": ESTIMATE,
    "loss": ESTIMATE,
    "against_full_depth": ESTIMATE,
    "agreement": ESTIMATE,
    "flops_per_token": ESTIMATE,
    "test_flops_per_token": float,
    "against_uniform_at_equal_loops": ESTIMATE,
    "against_uniform_at_equal_flops": ESTIMATE,
}

EXITS_AT_EQUAL_QUALITY = {
    "policy": str,
    "carry": str,
    "loss": ESTIMATE,
    "share_reached": float,
    "loops": ESTIMATE,
    "loops_over_uniform": ESTIMATE,
    "flops": ESTIMATE,
    "flops_over_uniform": ESTIMATE,
}

#: The table has a row for each point and window; costs are FLOPs of the model's parts (one loop),
#: and of one test by policy; rules is the file of calibrated exit rules, where some were.
EXITS = {
    "training": TRAINING,
    "recurrences": int,
    "calibration_windows": (int, int),
    "scored_windows": (int, int),
    "tokens": int,
    "table": Literal["exits.parquet"],
    "bootstrap": BOOTSTRAP,
    "policies": {...: str},
    "carries": [str],
    "costs": {"prelude": float, "recurrence": float, "readout": float, "tests": {...: float}},
    "rules": str | None,
    "probe": {"examples": int, "share_changing": float, "scored_area_under_roc": float | None},
    "points": Sized([EXIT_POINT], "points"),
    "at_equal_quality": [EXITS_AT_EQUAL_QUALITY],
}

#: What the loss of a run sees; the keys are those of its config.
CONDITION = {
    "supervision": str,
    "loop_weights": [float],
    "norm_penalty": float,
    "readout_norm": Literal["every", "last", "none"],
    "state_norm": Literal["every", "between", "last", "none"],
    "injection": str,
}

#: Of the forward pass with each of 1 … R loops: median tokens per second, and quartiles.
THROUGHPUT = {
    "batch": int,
    "length": int,
    "warm_ups": int,
    "repeats": int,
    "device": str,
    "depths": Sized([int], "R"),
    "tokens_per_second": Sized([float], "R"),
    "quartiles": (Sized([float], "R"), Sized([float], "R")),
    "flops_per_token": Sized([float], "R"),
}

CLAMP = {"loss": UP_TO_R, "difference": UP_TO_R}

#: K loops were trained, R were run; norms are those of h_i over tokens, ``update`` has the parts of
#: the updates and how well they predict angle and growth, ``probe`` the update of the trained
#: depth's states at other scales.
READOUT = {
    "condition": CONDITION,
    "seed": int,
    "trained_loops": Sized(int, "K"),
    "loops": Sized(int, "R"),
    "width": int,
    "tokens": int,
    "bootstrap": BOOTSTRAP,
    "norm": {"mean": FROM_ZERO, "median": FROM_ZERO, "p99": FROM_ZERO, "tail_index": FROM_ZERO},
    "radial_fraction": {
        "immediate": {"mean": UP_TO_R, "pooled": UP_TO_R},
        "objective": {"mean": UP_TO_K, "pooled": UP_TO_K},
    },
    "update": {
        "size": UP_TO_R,
        "growth": UP_TO_R,
        "radial": UP_TO_R,
        "tangential": UP_TO_R,
        "angle": UP_TO_R,
        "predicted_angle": UP_TO_R,
        "angle_error": UP_TO_R,
        "growth_error": UP_TO_R,
    },
    "probe": {
        "factors": Sized([float], "factors"),
        "size": FACTORS,
        "radial": FACTORS,
        "tangential": FACTORS,
        "angle": FACTORS,
        "angle_slope": ESTIMATE,
        "radial_ratio": Sized([ESTIMATE], "factors", -1),
    },
    "loss": UP_TO_R,
    "perplexity": UP_TO_R,
    "bits_per_byte": Sized([float], "R"),
    "clamp": {"rescaled": CLAMP, "tangential": CLAMP},
    "throughput": THROUGHPUT,
}

#: The suites that have a part of their own, by its name.
SUITES: dict[str, Any] = {
    "depth": DEPTH,
    "convergence": CONVERGENCE,
    "exits": EXITS,
    "readout": READOUT,
}
