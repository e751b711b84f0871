"""Δφ is recovered, its parts add up, and only what both studies share is used."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis import Runs
from analysis.errors import InputError
from analysis.scaling.compare import compare, shared_runs
from analysis.tables.runs import RunTable, load_runs
from tests.analysis import laptop_study

LOWER_PHI = laptop_study.joint_law(**laptop_study.TRUTH.params | {"phi": 0.5})


def table(runs: list[dict], folder, name: str) -> RunTable:
    path = folder / f"{name}.csv"
    pd.DataFrame(runs).to_csv(path, index=False)
    return load_runs(path)


def cheaper_loop(runs: list[dict], law, noise: float, seed: int) -> list[dict]:
    """Looped runs that cost a fifth less per token and so see more tokens for their budget."""
    rng = np.random.default_rng(seed)
    result = []
    for run in runs:
        if run["r"] == 1:
            continue
        cost = 0.8 * run["flops_per_token"]
        tokens = round(run["budget"] / cost / 512) * 512
        counts = run["n_once"] + run["n_inject"], run["n_rec"], run["r"], tokens
        loss = law.predict(Runs.from_counts(*counts))
        changed = {"flops_per_token": cost, "tokens": tokens, "train_flops": tokens * cost}
        result.append(run | changed | {"loss": float(loss + noise * rng.standard_normal())})
    return result


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    base = laptop_study.study(noise=0.003, seed=1)
    variant = cheaper_loop(base, LOWER_PHI, noise=0.003, seed=2)
    return compare(
        table(base, folder, "base"), table(variant, folder, "variant"), starts=8, resamples=40
    )


def test_the_difference_of_phi_is_recovered(compared):
    assert abs(compared.delta_phi.value + 0.2) < 0.03
    assert compared.delta_phi.ci95[1] < 0


def test_pairing_makes_the_difference_surer_than_independent_studies_would(compared):
    apart = np.hypot(compared.phi_baseline.se, compared.phi_variant.se)
    assert compared.delta_phi.se < apart


def test_a_gain_in_loss_is_split_into_tokens_and_capacity(compared):
    """More tokens gain what the true law says, less capacity loses the rest."""
    truth = laptop_study.TRUTH.params
    base = [run for run in laptop_study.study(noise=0.0) if run["r"] == 4]
    variant = cheaper_loop(base, LOWER_PHI, noise=0.0, seed=0)
    tokens = np.mean(
        [
            truth["B"] * (v["tokens"] ** -truth["beta"] - b["tokens"] ** -truth["beta"])
            for b, v in zip(base, variant, strict=True)
        ]
    )
    total = np.mean([v["loss"] - b["loss"] for b, v in zip(base, variant, strict=True)])
    (shares,) = [s for s in compared.loss if s.r == 4]
    assert shares.n_pairs == 9
    np.testing.assert_allclose(shares.tokens.value, tokens, atol=0.01)
    np.testing.assert_allclose(shares.capacity.value, total - tokens, atol=0.01)
    np.testing.assert_allclose(shares.from_phi.value, total - tokens, atol=0.01)
    np.testing.assert_allclose(
        shares.tokens.value + shares.capacity.value, shares.measured.value, rtol=1e-9
    )
    assert shares.tokens.ci95[1] < 0 < shares.capacity.ci95[0]


def test_a_cheaper_token_or_a_weaker_loop_widens_the_best_model(compared):
    for shift in compared.width:
        assert shift.optimal.ci95[0] > 1
        assert shift.effective.ci95[1] < 1


def test_a_study_against_itself_has_no_difference(tmp_path):
    base = table(laptop_study.study(seed=3), tmp_path, "base")
    same = compare(base, base, starts=20, resamples=20)
    assert same.delta_phi.value == 0
    assert same.delta_phi.ci95 == (0, 0)
    assert all(share.measured.value == 0 for share in same.loss)


def test_only_shared_cells_and_one_set_of_unlooped_runs_are_used(tmp_path):
    base = laptop_study.study(seed=1)
    variant = laptop_study.study(seed=2, recurrences=(1, 2, 8), budgets=(3e11, 1e12))
    ours, theirs, set_aside, warnings = shared_runs(
        table(base, tmp_path, "base"), table(variant, tmp_path, "variant")
    )
    assert sorted(ours.runs["budget"].unique()) == [3e11, 1e12]
    assert sorted(ours.runs["r"].unique()) == [1, 2, 8]
    unlooped = [t.runs[t.runs["r"] == 1].reset_index(drop=True) for t in (ours, theirs)]
    pd.testing.assert_frame_equal(*unlooped)
    assert warnings == []
    reasons = {dropped.reason for dropped in set_aside}
    assert reasons == {
        "baseline: its (budget, r) cell is in one study only",
        "baseline: no looped run shares its budget",
        "variant: the r = 1 runs of the baseline stand for both",
    }
    assert len(ours) + len(theirs) + len(set_aside) == len(base) + len(variant) + len(unlooped[0])


def test_studies_without_a_width_are_still_compared(tmp_path):
    base = table(laptop_study.study(noise=0.003), tmp_path, "base")
    bare = dataclasses.replace(base, runs=base.runs.drop(columns="d_model"))
    result = compare(bare, bare, starts=20, resamples=20)
    assert result.loss == []
    assert result.width == []
    assert any("d_model" in warning for warning in result.warnings)


def test_what_cannot_be_compared_is_refused(tmp_path):
    base = table(laptop_study.study(), tmp_path, "base")
    elsewhere = table(
        [run | {"budget": 2 * run["budget"]} for run in laptop_study.study(budgets=(1e11,))],
        tmp_path,
        "elsewhere",
    )
    with pytest.raises(InputError, match=r"no shared budget: .* 1e\+12, the variant 2e\+11"):
        compare(base, elsewhere)
    other_r = table(laptop_study.study(recurrences=(1, 3)), tmp_path, "other_r")
    with pytest.raises(InputError, match=r"no .* cell with r > 1 is in both"):
        compare(base, other_r)
    with pytest.raises(InputError, match="'once', the variant as 'excluded'"):
        compare(base, dataclasses.replace(base, injection="excluded"))
