"""Run folders as the suite readout leaves them, made up with known truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.analysis import laptop_study
from tests.analysis.elastic_study import bootstrap, estimate

K, R, WIDTH = 4, 8, 64
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
#: Final norm and perplexity at K of each condition; a seed changes both by some per cent.
TRUTH = {
    "drift": (40_000.0, 30.0),
    "raw": (40.0, 24.0),
    "penalised": (50.0, 25.0),
    "between": (8.0, 26.0),
    "terminal": (3_000.0, 27.0),
}
CONDITIONS = {
    "drift": {},
    "raw": {"readout_norm": "none"},
    "penalised": {"norm_penalty": 0.01},
    "between": {"state_norm": "between"},
    "terminal": {"supervision": "last"},
}


def rows(values, error=0.01):
    """Estimates with a relative error; None where there is no number."""
    return [
        estimate(None) if not np.isfinite(value) else estimate(value, error * abs(value))
        for value in np.asarray(values, float)
    ]


def part(name: str, seed: int = 0, width: int = WIDTH) -> dict:
    """One run's part of the summary."""
    final, perplexity = TRUTH[name]
    jitter = 1 + 0.03 * np.random.default_rng(seed).standard_normal()
    loops = np.arange(R + 1)
    norm = (
        1.0 * (final * jitter) ** (np.minimum(loops, K) / K) * (1 + 0.1 * np.maximum(loops - K, 0))
    )
    blind = name != "raw"
    ppl = perplexity * jitter * np.where(loops[1:] < K, 1 + 0.01 * (K - loops[1:]), 1.0)
    if name == "raw":
        ppl = perplexity * jitter * (1 + 0.2 * np.abs(loops[1:] - K))
    size, fraction = norm[:-1], np.full(R, 1e-9 if blind else 0.02)
    tangential = np.full(R, 3.0)
    probe_size = norm[K] * np.asarray(FACTORS)
    condition = {
        "supervision": "every", "loop_weights": [], "norm_penalty": 0.0, "readout_norm": "every",
        "state_norm": "none", "injection": "passthrough",
    } | CONDITIONS[name]  # fmt: skip
    clamp = {"loss": rows(np.log(ppl)), "difference": rows(np.r_[0, np.full(R - 1, 0.02 * jitter)])}
    return {
        "condition": condition,
        "seed": seed,
        "trained_loops": K,
        "loops": R,
        "width": width,
        "tokens": 1000,
        "bootstrap": bootstrap(),
        "norm": {
            "mean": rows(norm), "median": rows(norm), "p99": rows(2 * norm),
            "tail_index": rows(np.full(R + 1, 6.0)),
        },
        "radial_fraction": {
            "immediate": {"mean": rows(fraction), "pooled": rows(fraction)},
            "objective": {"mean": rows(fraction[:K]), "pooled": rows(fraction[:K])},
        },
        "update": {
            "size": rows(size), "growth": rows(np.diff(norm)), "radial": rows(np.diff(norm)),
            "tangential": rows(tangential), "angle": rows(tangential / size),
            "predicted_angle": rows(tangential / size), "angle_error": rows(np.full(R, 1e-3)),
            "growth_error": rows(np.full(R, 1e-3)),
        },
        "probe": {
            "factors": list(FACTORS), "size": rows(probe_size), "radial": rows(np.ones(7)),
            "tangential": rows(np.full(7, 3.0)), "angle": rows(3 / probe_size),
            "angle_slope": estimate(-1 - 0.01 * seed, 0.001), "radial_ratio": rows(np.ones(6)),
        },
        "loss": rows(np.log(ppl)),
        "perplexity": rows(ppl),
        "bits_per_byte": np.log(ppl).tolist(),
        "clamp": {"rescaled": clamp, "tangential": clamp},
        "throughput": {
            "batch": 8, "length": 64, "warm_ups": 2, "repeats": 7, "device": "1 x cpu",
            "depths": list(range(1, R + 1)),
            "tokens_per_second": (1e5 / loops[1:]).tolist(),
            "quartiles": [(0.9e5 / loops[1:]).tolist(), (1.1e5 / loops[1:]).tolist()],
            "flops_per_token": (1e5 + 2e5 * loops[1:]).tolist(),
        },
    }  # fmt: skip


def write(root: Path, names=tuple(TRUTH), seeds=(0, 1, 2), width: int = WIDTH) -> Path:
    """A study of finished runs, by (condition, seed)."""
    base = laptop_study.study(recurrences=(4,), budgets=(1e11,))[0]
    for name in names:
        for seed in seeds:
            run = base | {"run": f"{name}_d{width}_seed{seed}", "readout": part(name, seed, width)}
            folder = root / run["run"]
            folder.mkdir(parents=True)
            (folder / "status.json").write_text(json.dumps({"state": "finished"}))
            (folder / "summary.json").write_text(json.dumps(run))
    return root
