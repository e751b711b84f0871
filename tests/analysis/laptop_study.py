"""A small synthetic study with known truth, of the size a laptop measures in ten minutes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from analysis import FittedLaw, Runs
from analysis.laws.joint import JOINT


def joint_law(**params: float) -> FittedLaw:
    return FittedLaw(JOINT, params)


TRUTH = joint_law(E=1.5, A=30.0, B=80.0, alpha=0.28, beta=0.33, phi=0.7)
BUDGETS = (1e11, 3e11, 1e12)
WIDTHS = {1e11: (16, 24, 32), 3e11: (16, 24, 40), 1e12: (24, 32, 48)}
LAYER = 12  # matrices of one layer, in units of d²
DEPTH, VOCABULARY, SEQUENCE = 10, 512, 64
TOKENS_PER_STEP = 512


def shape(r: int, d_model: int) -> dict[str, int]:
    """Matrix counts and FLOPs per token: one prelude layer, 8/r looped layers, one coda layer."""
    n_once, n_rec, n_inject = (
        (0, DEPTH * LAYER, 0) if r == 1 else (2 * LAYER, (DEPTH - 2) * LAYER // r, 2)
    )
    executed = (n_once + r * (n_rec + n_inject)) * d_model**2
    linear = 6 * VOCABULARY + 12 * DEPTH * (SEQUENCE + 1)
    return {
        "d_model": d_model,
        "n_once": n_once * d_model**2,
        "n_rec": n_rec * d_model**2,
        "n_inject": n_inject * d_model**2,
        "flops_per_token": 6 * executed + linear * d_model,
    }


def study(
    noise: float = 0.012,
    seed: int = 0,
    law: FittedLaw = TRUTH,
    recurrences: tuple[int, ...] = (1, 2, 4, 8),
    budgets: tuple[float, ...] = BUDGETS,
) -> list[dict]:
    """The summaries of all runs; losses follow `law` with Gaussian noise of this many nats."""
    rng = np.random.default_rng(seed)
    runs = []
    for budget in budgets:
        for r in recurrences:
            for d_model in WIDTHS[budget]:
                run = shape(r, d_model)
                steps = round(budget / run["flops_per_token"] / TOKENS_PER_STEP)
                tokens = steps * TOKENS_PER_STEP
                once = run["n_once"] + run["n_inject"]
                loss = law.predict(Runs.from_counts(once, run["n_rec"], r, tokens))
                runs.append(
                    {
                        "run": f"c{budget:.0e}_r{r}_d{d_model}",
                        "budget": budget,
                        "r": r,
                        **run,
                        "tokens": tokens,
                        "train_flops": tokens * run["flops_per_token"],
                        "loss": float(loss + noise * rng.standard_normal()),
                    }
                )
    return runs


def write_run_folders(runs: list[dict], root: Path) -> Path:
    """`runs` as finished run folders below `root`."""
    for run in runs:
        folder = root / run["run"].replace("/", "_")
        folder.mkdir(parents=True)
        (folder / "status.json").write_text(json.dumps({"state": "finished"}))
        (folder / "summary.json").write_text(json.dumps(run))
    return root
