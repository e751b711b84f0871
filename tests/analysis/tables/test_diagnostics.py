"""Each sign that columns do not mean what they say: raised when spoiled, silent when clean."""

import numpy as np
import pandas as pd
import pytest

from analysis.tables.diagnostics import data_warnings, executed_parameters, flops_ratio
from tests.analysis import laptop_study


def warned(frame, text) -> str:
    found = [warning for warning in data_warnings(frame) if text in warning]
    assert len(found) == 1, data_warnings(frame)
    return found[0]


@pytest.fixture
def laptop() -> pd.DataFrame:
    return pd.DataFrame(laptop_study.study())


def test_clean_studies_raise_nothing(frame, laptop):
    assert data_warnings(frame) == []
    assert data_warnings(laptop) == []


def test_six_n_d_is_computed_without_overflow(frame):
    # In int64 the largest of these products wraps round to negative numbers.
    integers = frame.astype(dict.fromkeys(("n_once", "n_rec", "n_inject", "tokens"), np.int64))
    wrapped = 6 * (integers["n_once"] + integers["r"] * integers["n_rec"]) * integers["tokens"]
    assert (wrapped <= 0).any()
    ratio = flops_ratio(integers)
    assert (ratio > 1).all()
    assert (ratio < 2.5).all()
    assert executed_parameters(integers).dtype == np.float64


def test_forward_only_flops_of_one_run(frame):
    frame.loc[30, ["flops_per_token", "train_flops"]] /= 3
    frame.loc[30, "budget"] /= 3
    warning = warned(frame, "C / 6ND is below 1")
    assert "1 of 116 runs" in warning
    assert frame.loc[30, "run"] in warning


def test_forward_only_flops_hidden_by_a_large_readout(laptop):
    # Where the readout outweighs 6N, a third of the FLOPs is still above 6ND.
    readout = 6 * 4096 * laptop["d_model"] * laptop["tokens"]
    laptop["budget"] = laptop["train_flops"] = laptop["train_flops"] + readout
    laptop["flops_per_token"] = laptop["train_flops"] / laptop["tokens"]
    assert data_warnings(laptop) == []
    small = laptop.query("r == 2").index[0]
    laptop.loc[small, ["flops_per_token", "train_flops", "budget"]] /= 3
    assert flops_ratio(laptop)[small] > 1
    assert "two ways of counting FLOPs are mixed" in warned(laptop, "C / 6ND at r = 2 jumps")


def test_train_flops_from_another_count_than_flops_per_token(frame):
    frame.loc[:3, "flops_per_token"] *= 3
    warning = warned(frame, "train_flops is not flops_per_token × tokens")
    assert "4 of 116 runs" in warning
    assert "0.333" in warning


def test_budget_that_was_not_spent(frame):
    frame.loc[7, "budget"] *= 1.2
    assert "1 of 116 runs" in warned(frame, "more than 10 % away from budget")


def test_embeddings_counted_in_n(frame):
    vocabulary = 32_064
    frame["n_once"] += 2 * vocabulary * frame["d_model"]
    found = [warning for warning in data_warnings(frame) if "embeddings (a part" in warning]
    assert [f"N at r = {r}" in warning for r, warning in zip((1, 2, 4, 8), found, strict=True)]
    assert "about 240·d² + 64128·d" in found[0]


def test_copied_run(frame):
    copy = frame.iloc[[3]].assign(run="copy")
    assert "2 of 117 runs" in warned(pd.concat([frame, copy]), "same (r, N, D) and same loss")


def test_repeated_cell(frame):
    seed = frame.iloc[[3]].assign(run="seed1", loss=3.0)
    assert "--group=min" in warned(pd.concat([frame, seed]), "several runs of one (r, N, D)")


def test_losses_of_runs_that_did_not_learn(frame):
    frame["loss"] += 6
    assert "barely better than guessing" in warned(frame, "the lowest loss is")


def test_two_budgets(frame):
    two = frame[frame["budget"] < 2e18].reset_index(drop=True)
    assert "2 budget(s): fewer than three" in warned(two, "cannot hold an exponent")


@pytest.mark.parametrize(
    ("column", "values", "what"),
    [
        ("data_digest", ("1a2b", "3c4d"), "2 data: data_digest is 1a2b in 110, 3c4d in 6 of 116"),
        ("Sequence Length", (2048, 512), "2 sequence lengths: Sequence Length is 2048 in 110"),
        ("vocab_size", (32_064, 50_257), "2 vocabularies: vocab_size is 32064 in 110"),
    ],
)
def test_runs_that_are_not_comparable(frame, column, values, what):
    frame[column] = [values[0]] * 110 + [values[1]] * 6
    assert what in warned(frame, "their losses are not comparable")
    assert data_warnings(frame.assign(**{column: values[0]})) == []


@pytest.mark.parametrize("loss", [7.5, 3.6, 2.2])
def test_losses_that_are_far_from_their_neighbours_are_named(frame, loss):
    frame.loc[[3, 40], "loss"] = loss
    found = [line for line in data_warnings(frame) if "robust standard deviations" in line]
    assert [line.split(":")[0] for line in found] == list(frame["run"][[3, 40]])
    assert ("above" if loss > 3 else "below") in found[0]


def test_a_diverged_run_of_a_small_study(laptop):
    laptop.loc[7, "loss"] = 6.2
    assert laptop["run"][7] in warned(laptop, "robust standard deviations")
