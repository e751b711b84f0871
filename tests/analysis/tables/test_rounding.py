"""Budgets and r that mean one number are one number; those that do not stay apart."""

import numpy as np

from analysis import load_runs


def test_r_up_to_rounding(frame, write_csv):
    frame = frame.astype({"r": float})
    frame.loc[frame.index[frame["r"] == 8][:14], "r"] = 8.0000001
    table = load_runs(write_csv(frame))
    assert sorted(set(table.runs["r"])) == [1, 2, 4, 8]
    assert table.warnings == [
        "r has 5 values that are taken as 4 (1, 2, 4, 8), in 14 of 116 runs: equal up to rounding"
    ]
    assert len(load_runs(write_csv(frame), where="r == 8")) == 29


def test_spent_flops_are_not_taken_for_budgets(published, frame, write_csv):
    frame["budget"] = frame["train_flops"]
    table = load_runs(write_csv(frame))
    assert list(table.runs["budget"]) == list(published.runs["budget"])
    (line,) = table.warnings
    assert line.startswith("budget has 116 values that are taken as 6 (4.64e+17, 1e+18, 2.15e+18")


def test_one_budget_of_many_up_to_rounding(published, frame, write_csv):
    frame.loc[5, "budget"] *= 1 + 1e-9
    assert list(load_runs(write_csv(frame)).runs["budget"]) == list(published.runs["budget"])


def test_budgets_without_a_grid_stay_as_they_are(frame, write_csv):
    """A chain of neighbours close to each other is no budget that was aimed at."""
    budgets = 1e18 * np.logspace(0, 1, 116)
    frame["train_flops"] = frame["budget"] = budgets
    frame["flops_per_token"] = budgets / frame["tokens"]
    assert load_runs(write_csv(frame)).runs["budget"].nunique() == 116
