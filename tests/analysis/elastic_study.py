"""Run folders as the suites depth, convergence and exits leave them, made up with known truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from tests.analysis import laptop_study

TYPES = ("whitespace", "punctuation", "number", "word start", "word continuation", "other")
EPSILONS = (0.1, 0.01, 0.001)
WORDS = ("the", " cat", " sat", ",", " on", "\n", "12", " the", " ma", "t", ".", " ")


def estimate(value, error=0.01):
    """A number as suites write it."""
    if value is None:
        return {"value": None, "standard_error": None, "ci95": [None, None]}
    value, error = float(value), float(error)
    low, high = value - 1.96 * error, value + 1.96 * error
    return {"value": value, "standard_error": error, "ci95": [low, high]}


def depth_part(mean: int, *, sampled: bool = True) -> dict:
    """Loss falls by a factor a loop up to the mean; a fixed depth rises again on both sides."""
    depths = np.arange(1, 4 * mean + 1)
    loss = 3 + 2.0 ** -depths.astype(float) * (depths < mean)
    if not sampled:
        loss = 3 + 0.1 * np.log2(depths / mean) ** 2
    difference = loss - loss[mean - 1]
    return {
        "training": training(mean, sampled),
        "tokens": 1000,
        "bootstrap": bootstrap(),
        "depths": depths.tolist(),
        "loss": [estimate(each, 0.02) for each in loss],
        "bits_per_byte": loss.tolist(),
        "against_mean": {
            "depth": mean,
            "difference": [estimate(each, 1e-4) for each in difference],
        },
        "best_depth": estimate(mean),
        "useful": {
            "within_nats": 0.005,
            "depth": estimate(mean, 0.1 * mean),
            "over_training_mean": estimate(1.0, 0.1),
        },
    }


def training(mean: int, sampled: bool) -> dict:
    return {
        "kind": "lognormal_poisson" if sampled else "fixed", "per": "step", "mean": float(mean),
        "sigma": 0.5, "minimum": 1, "maximum": 3 * mean, "backprop_recurrences": 0,
    }  # fmt: skip


def bootstrap() -> dict:
    return {"unit": "window", "units": 40, "resamples": 100, "seed": 0}


def tokens(mean: int, n: int = 1200) -> pd.DataFrame:
    """A token table: KL falls tenfold every two loops from a start that differs by token."""
    rng = np.random.default_rng(0)
    loops = np.arange(2, 2 * mean + 1)
    start = 10.0 ** rng.normal(-0.5, 0.6, n)
    kl = start[:, None] * 10.0 ** (-(loops - 2) / 2)
    return pd.DataFrame(
        {
            "text": [WORDS[i % len(WORDS)] for i in range(n)],
            "type": rng.choice(TYPES, n),
            "kl": list(kl.astype(np.float32)),
        }
    )


def convergence_part(mean: int, table: pd.DataFrame, *, sampled: bool = True) -> dict:
    R, kl = 2 * mean, np.stack(table["kl"].to_numpy())
    loops = np.arange(2, R + 1)
    per_loop = {
        "mean": [estimate(each) for each in kl.mean(0)],
        "median": [estimate(each, 0.01 * each) for each in np.median(kl, 0)],
        "quantiles": {
            str(q): np.quantile(kl, q, axis=0).tolist() for q in (0.05, 0.25, 0.5, 0.75, 0.95)
        },
    }
    return {
        "training": training(mean, sampled),
        "recurrences": R,
        "mean_depth": mean,
        "tokens": len(table),
        "table": "convergence.parquet",
        "bootstrap": bootstrap(),
        "loops": loops.tolist(),
        "kl": per_loop,
        "relative_change": per_loop,
        "angle": per_loop,
        "argmax_changed": [estimate(max(0.0, 0.2 - 0.04 * i), 0.002) for i in range(R - 1)],
        "settled": [_settled(kl, table["type"].to_numpy(), eps, R, mean) for eps in EPSILONS],
    }


def _settled(kl, types, epsilon, R, mean) -> dict:
    last = [max([j for j in range(R - 1) if row[j] >= epsilon], default=-1) for row in kl]
    settled = np.array(last) + 3  # index j is loop j + 2, and it settles at the next

    def one(keep):
        counts = [int((settled[keep] == loop).sum()) for loop in range(2, R + 1)]
        return {
            "tokens": int(keep.sum()),
            "histogram": counts,
            "unsettled": int((settled[keep] > R).sum()),
            "median": estimate(np.median(settled[keep]), 0.0),
            "tail_at_mean": estimate((settled[keep] > mean).mean(), 0.005),
        }

    everyone = np.ones(len(kl), bool)
    half = np.arange(len(kl)) < len(kl) // 2
    halves = {"0 to 1": one(half), "1 to 9": one(~half)}
    by_type = {name: one(types == name) for name in TYPES}
    return {
        "epsilon": epsilon, **one(everyone), "by_type": by_type, "by_loss": halves,
        "by_position": halves, "by_frequency": halves,
    }  # fmt: skip


def exits_part(mean: int, *, sampled: bool = True) -> dict:
    """kl gains over uniform depth at equal loops but loses at equal FLOPs; change gains at both."""
    R = 2 * mean
    gain = {"uniform": 0.0, "kl": -0.02, "change": -0.01, "oracle_kl": -0.05}
    loss = lambda loops: 3 + 0.5 * np.exp(-loops)
    points = []
    for carry in ("carry", "full_depth"):
        for policy, difference in gain.items():
            for loops in range(1 if policy == "uniform" else 2, R + 1):
                value = loss(loops) + difference
                test = 150_000.0 * loops if policy == "kl" else 0.0
                at_flops = 0.03 if policy == "kl" else difference
                points.append(
                    {
                        "policy": policy,
                        "carry": carry,
                        "threshold": float(loops),
                        "mean_loops": estimate(loops, 0.05),
                        "loss": estimate(value, 0.02),
                        "against_full_depth": estimate(value - loss(R), 0.002),
                        "agreement": estimate(0.95),
                        "flops_per_token": estimate(1e5 + 2e5 * loops + test, 1e3),
                        "test_flops_per_token": test,
                        "against_uniform_at_equal_loops": estimate(difference, 0.002),
                        "against_uniform_at_equal_flops": estimate(
                            None if loops == R else at_flops, 0.002
                        ),
                    }
                )
    return {
        "training": training(mean, sampled),
        "recurrences": R,
        "calibration_windows": [0, 20],
        "scored_windows": [20, 40],
        "tokens": 500,
        "table": "exits.parquet",
        "bootstrap": bootstrap(),
        "policies": {name: f"what {name} does" for name in gain},
        "carries": ["carry", "full_depth"],
        "costs": {
            "prelude": 1e5, "recurrence": 2e5, "readout": 1.4e5,
            "tests": {"uniform": 0.0, "kl": 1.5e5, "change": 320.0, "oracle_kl": 0.0},
        },
        "rules": None,
        "probe": {"examples": 100, "share_changing": 0.1, "scored_area_under_roc": 0.8},
        "points": points,
        "at_equal_quality": [
            {
                "policy": policy,
                "carry": carry,
                "loss": estimate(3.01),
                "share_reached": 0.0 if policy == "oracle_kl" else 1.0,
                "loops": estimate(None if policy == "oracle_kl" else 4.0),
                "flops": estimate(None if policy == "oracle_kl" else 9e5),
                "loops_over_uniform": estimate(None if policy == "oracle_kl" else 0.9),
                "flops_over_uniform": estimate(None if policy == "oracle_kl" else 1.3),
            }
            for carry in ("carry", "full_depth")
            for policy in gain
        ],
    }  # fmt: skip


def write(root: Path, models=((4, True), (8, True), (4, False))) -> Path:
    """A study of finished runs, by (mean, whether the depth was drawn)."""
    runs = laptop_study.study(recurrences=(4,), budgets=(1e11,))[: len(models)]
    for run, (mean, sampled) in zip(runs, models, strict=True):
        run["run"] = f"{'sampled' if sampled else 'fixed'}_mean{mean}"
        run["depth"] = depth_part(mean, sampled=sampled)
        table = tokens(mean)
        run["convergence"] = convergence_part(mean, table, sampled=sampled)
        run["exits"] = exits_part(mean, sampled=sampled)
        folder = root / run["run"]
        folder.mkdir(parents=True)
        table.to_parquet(folder / "convergence.parquet")
        (folder / "status.json").write_text(json.dumps({"state": "finished"}))
        (folder / "summary.json").write_text(json.dumps(run))
    return root
