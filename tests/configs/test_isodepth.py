"""The published grid: every run of it, and what the studies beside it hold constant."""

from pathlib import Path

import pandas as pd
import pytest

from configs import isodepth
from configs.studies import (
    extrapolation,
    injection_ablation,
    isodepth_hyperconnect,
    isodepth_truncated,
    learning_rates,
    rate_transfer,
)
from configs.studies import isodepth as grid
from looped_jax.config import resolve
from looped_jax.model.accounting import count_parameters

PUBLISHED = Path(__file__).parents[2] / "analysis/data/schwethelm2026_isodepth.csv"
GIVEN_BY_THE_GRID = [
    "r", "d_model", "n_once", "n_rec", "n_inject", "tokens", "steps", "flops_per_token",
]  # fmt: skip


def test_every_run_is_the_published_one():
    published = pd.read_csv(PUBLISHED, index_col="run").sort_index()
    runs = {run.name: resolve(run) for run in grid.get_runs()}
    counted = {name: count_parameters(run.model) for name, run in runs.items()}
    ours = pd.DataFrame(
        {
            name: {
                "r": run.model.recurrences,
                "d_model": run.model.width,
                "n_once": counted[name].n_once,
                "n_rec": counted[name].n_rec,
                "n_inject": counted[name].n_inject,
                "tokens": run.steps * run.batch_tokens,
                "steps": run.steps,
                "flops_per_token": run.flops_per_token,
            }
            for name, run in runs.items()
        }
    ).T.sort_index()
    pd.testing.assert_frame_equal(
        ours, published[GIVEN_BY_THE_GRID], check_dtype=False, check_names=False, check_exact=True
    )


def test_the_reference_of_looped_and_other_models():
    """10 tokens for each executed parameter of s = 10: 1,015.8M for r > 1, 983.0M for r = 1."""
    tokens = {r: resolve(isodepth.run(r=r, s=6, flops=1e18)).optimizer.transfer for r in (1, 2, 8)}
    assert tokens[2].tokens_ref == tokens[8].tokens_ref == 1_015_808_000
    assert tokens[1].tokens_ref == 983_040_000


def test_one_recurrence_alone():
    assert {run.model.recurrences for run in grid.get_runs("r=4")} == {4}
    assert len(grid.get_runs("r=4")) == 29


def test_truncated_runs_stop_gradients_half_way():
    runs = isodepth_truncated.get_runs()
    assert len(runs) == 3 * (29 + 5)
    assert {(run.model.recurrences, run.model.backprop_recurrences) for run in runs} == {
        (2, 1), (4, 2), (8, 4),
    }  # fmt: skip


def test_hyperconnected_runs_have_two_lanes():
    runs = isodepth_hyperconnect.get_runs()
    assert len(runs) == 3 * (4 + 5 + 5 + 6 + 1)
    assert {(run.model.injection, run.model.lanes) for run in runs} == {("hyperconnect", 2)}


def test_the_extrapolation_has_the_published_steps():
    runs = [resolve(run) for run in extrapolation.get_runs()]
    assert {(run.steps, run.batch_tokens, run.model.width) for run in runs} == {
        (89_645, 524_288, 2176)
    }


@pytest.mark.parametrize(
    ("study", "published", "laptop"),
    [(injection_ablation, 3, 12), (learning_rates, 16, 12), (rate_transfer, 48, 30)],
)
def test_ablations_have_two_scales(study, published, laptop):
    for arg, n in (("", published), ("scale=laptop", laptop)):
        runs = study.get_runs(arg)
        assert len(runs) == len({run.name for run in runs}) == n
        assert {run.study for run in runs} == {study.__name__.rpartition(".")[2]}
        for run in runs[:: max(1, n // 4)]:
            assert resolve(run).steps >= 1


def test_additive_injection_starts_from_zeros():
    runs = {run.name: run for run in injection_ablation.get_runs("scale=laptop")}
    assert runs["additive_seed0"].model.initial_state == "zeros"
    assert runs["linear_seed0"].model.initial_state == "input"


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("s=7", r"s = 7; allowed: an even number"),
        ("flops=1e18,tokens=1e9", r"flops = 1e\+18, tokens = .*; allowed: exactly one"),
    ],
)
def test_errors(arg, message):
    with pytest.raises(ValueError, match=message):
        isodepth.get_config(arg)
