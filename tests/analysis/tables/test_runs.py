"""Tables from CSVs and run folders: what is read, what is dropped, what is refused and where."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, load_runs
from tests.analysis import laptop_study


def refusal(path, **options) -> str:
    with pytest.raises(AnalysisError) as refused:
        load_runs(path, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_published_runs(published, published_csv):
    assert len(published) == 116
    assert published.dropped == []
    assert published.warnings == []
    assert published.source == published_csv
    assert re.fullmatch("[0-9a-f]{64}", published.sha256)
    assert published.runs["tokens"].dtype == np.float64
    assert published.runs["r"].dtype == np.int64
    assert "quality" in published.runs


def test_order_of_columns_and_rows_does_not_matter(published, write_csv):
    shuffled = published.runs.sample(frac=1, random_state=0)[sorted(published.runs.columns)]
    table = load_runs(write_csv(shuffled))
    pd.testing.assert_frame_equal(
        table.runs.sort_values("run", ignore_index=True),
        published.runs.sort_values("run", ignore_index=True),
        check_like=True,
    )


def test_counts_are_floats_so_that_products_cannot_overflow(frame, write_csv):
    frame["tokens"] = 9 * 10**18 - 1  # fits int64; six times that does not
    booked = load_runs(write_csv(frame)).booked
    product = 6 * booked["n_rec"] * booked["tokens"]
    assert np.isfinite(product).all()
    assert (product > 0).all()


def test_where_filters_on_any_column(published_csv):
    table = load_runs(published_csv, where="r in (1, 4) and quality == 'clean' and budget < 3e18")
    assert set(table.runs["r"]) == {1, 4}
    assert set(table.runs["quality"]) == {"clean"}
    assert list(table.runs.index) == list(range(len(table)))


@pytest.mark.parametrize("where", ["loss <", "los < 3", "loss", "loss.sum()", "1"])
def test_where_that_is_no_condition(published_csv, where):
    assert f"--where {where!r} is not a condition on the columns" in refusal(
        published_csv, where=where
    )


def test_where_that_leaves_nothing(published_csv):
    assert "leaves none of 116 runs" in refusal(published_csv, where="r == 3")


def test_missing_file(tmp_path):
    assert refusal(tmp_path / "no.csv") == f"{tmp_path / 'no.csv'}: no such file or folder"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty file"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"run,run\n", "column 'run' appears twice"),
    ],
)
def test_file_that_is_no_table(tmp_path, content, problem):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert problem in refusal(path)


def test_header_without_rows(frame, write_csv):
    assert "no usable run" in refusal(write_csv(frame.iloc[:0]))


def test_everything_missing_is_named_at_once_and_nothing_wrong_is_advised(frame, write_csv):
    path = write_csv(frame[["r", "n_once", "budget"]].rename(columns={"budget": "N"}))
    message = refusal(path)
    assert message.startswith(f"{path}: no column tokens, loss; needed are r, n_once, n_rec, tok")
    assert "here: " not in message


def test_renamed_column_is_recognised(frame, write_csv):
    """Named, not taken from others as if it were not there."""
    path = write_csv(frame.rename(columns={"train_flops": "Train_FLOPS", "loss": "Loss"}))
    message = refusal(path)
    assert message.startswith(f"{path}: no column train_flops, loss; needed are r, n_once, n_rec")
    assert message.endswith("(here: --columns=train_flops=Train_FLOPS,loss=Loss)")
    assert len(load_runs(path, columns={"train_flops": "Train_FLOPS", "loss": "Loss"})) == 116


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("loss", "nan", "nan is not finite"),
        ("loss", "inf", "inf is not finite"),
        ("loss", "-2.5", "-2.5 is not positive"),
        ("loss", "0", "0 is not positive"),
        ("loss", "17.9", "17.9 is no loss in nats: a perplexity? (ln of it is 2.885)"),
        ("loss", "2,9", "'2,9' is not a number"),
        ("loss", "", "is empty"),
        ("tokens", "-1221760", "is not positive (an integer that overflowed?)"),
        ("n_rec", "-5", "-5 is not positive (an integer that overflowed?)"),
        ("r", "0.5", "0.5 is less than one recurrence"),
    ],
)
def test_bad_value_is_named_with_file_row_and_column(frame, write_csv, column, value, problem):
    frame = frame.astype({column: object})
    frame.loc[6, column] = value
    path = write_csv(frame)
    message = refusal(path)
    assert message.startswith(f"{path}: row 7 (line 8), column '{column}': ")
    assert problem in message


def test_blank_lines_count_as_lines(frame, write_csv):
    frame = frame.astype({"loss": object})
    frame.loc[1, "loss"] = "x"
    path = write_csv(frame)
    path.write_text(path.read_text().replace("\n", "\n\n", 1))
    assert "row 2 (line 4)" in refusal(path)


def test_run_without_parameters(frame, write_csv):
    frame.loc[0, ["n_once", "n_rec"]] = 0
    assert "row 1 (line 2), columns 'n_once' and 'n_rec': both are 0" in refusal(write_csv(frame))


def test_ragged_row(frame, write_csv):
    path = write_csv(frame)
    path.write_text(path.read_text() + "a,b\n")
    assert "row 117 (line 118) has 2 fields, the header 13" in refusal(path)


def test_runs_of_one_name_go_by_their_rows(frame, write_csv):
    frame.loc[9, "run"] = frame.loc[2, "run"] = "seed"
    runs = load_runs(write_csv(frame)).runs
    assert list(runs["run"][[2, 9]]) == ["seed (row 3)", "seed (row 10)"]


@pytest.mark.parametrize("column", ["state", "State", "STATE"])
def test_state_column_drops_unfinished_runs(frame, write_csv, column):
    frame[column] = "finished"
    frame.loc[5, column] = " Finished"
    frame = frame.astype({"loss": object})
    frame.loc[3, [column, "loss"]] = "diverged", ""
    table = load_runs(write_csv(frame))
    assert len(table) == 115
    assert [(run.run, run.reason) for run in table.dropped] == [
        (frame.loc[3, "run"], "state is diverged")
    ]


def test_group_keeps_the_minimum_only_when_asked(frame, write_csv):
    again = frame.iloc[[5]].assign(run="other_seed", loss=frame.loc[5, "loss"] + 0.01)
    path = write_csv(pd.concat([frame, again]))
    everything = load_runs(path)
    assert len(everything) == 117
    assert any("several runs of one (r, N, D)" in warning for warning in everything.warnings)
    best = load_runs(path, group="min")
    assert len(best) == 116
    assert best.warnings == []
    assert [run.run for run in best.dropped] == ["other_seed"]
    assert "which has the lower loss" in best.dropped[0].reason


def test_selecting_and_booking_keep_the_source(published):
    part = replace(published.select(published.runs["r"] == 4), injection="excluded")
    assert len(part) == 29
    assert (part.injection, part.sha256) == ("excluded", published.sha256)
    assert (part.booked["n_inject"] == 0).all()
    assert (part.runs["n_inject"] > 0).all()


# --- run folders --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "runs"
    laptop_study.write_run_folders(laptop_study.study(), root)
    return root


def some_run(folder):
    return sorted(path.parent for path in folder.rglob("status.json"))[0]


def test_run_folders_at_any_depth(folder):
    runs = laptop_study.study()
    nested = folder / "a" / "b"
    nested.mkdir(parents=True)
    some_run(folder).rename(nested / "moved")
    table = load_runs(folder)
    assert sorted(table.runs["run"]) == sorted(run["run"] for run in runs)
    assert table.dropped == []


def test_digest_changes_with_the_results(folder):
    before = load_runs(folder).sha256
    assert load_runs(folder).sha256 == before
    summary = some_run(folder) / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"loss": 4.0}))
    assert load_runs(folder).sha256 != before


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"state": "diverged", "step": 120, "reason": "loss is nan"}, "diverged at step 120: loss"),
        ({"state": "running", "step": 7, "updated": "2026-01-02"}, "running at step 7 (last wr"),
        ({"state": "interrupted"}, "interrupted"),
        ({"state": "failed", "reason": "out of memory"}, "failed: out of memory"),
        ({"state": "done"}, "broken: status.json has state 'done'"),
        ([], "broken: status.json is not a JSON object"),
    ],
)
def test_unfinished_runs_are_dropped_and_listed(folder, status, reason):
    run = some_run(folder)
    (run / "summary.json").unlink()
    (run / "status.json").write_text(json.dumps(status))
    table = load_runs(folder)
    assert len(table) == len(laptop_study.study()) - 1
    assert [dropped.run for dropped in table.dropped] == [run.name]
    assert table.dropped[0].reason.startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": None}, "broken: summary.json has loss = None, not a number"),
        ({"loss": float("nan")}, "broken: summary.json has loss = nan is not finite"),
        ({"tokens": -4}, "broken: summary.json has tokens = -4 is not positive"),
        ({"r": True}, "broken: summary.json has r = True, not a number"),
        ({"loss": 10**400}, "broken: summary.json has loss beyond 1e308"),
        ({"run": ["a"]}, "broken: summary.json has run = ['a'], no name"),
        ({"d_model": "wide"}, "broken: summary.json has d_model = 'wide', not a number"),
        ({"n_once": 0, "n_rec": 0}, "broken: summary.json has n_once and n_rec = 0"),
        ({"note": "\ud800"}, "broken: summary.json is unreadable ("),
    ],
)
def test_broken_summaries_are_dropped_and_listed(folder, change, reason):
    summary = some_run(folder) / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | change))
    (dropped,) = load_runs(folder).dropped
    assert dropped.reason.startswith(reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("summary.json", '{"run": ', "broken: summary.json is unreadable"),
        ("summary.json", None, "broken: status.json says finished, and there is no summary.json"),
        ("summary.json", '{"run": "a"}', "broken: summary.json lacks 'budget'"),
        ("summary.json", "[" * 100_000, "broken: summary.json is nested too deeply"),
    ],
)
def test_broken_files_are_dropped_and_listed(folder, name, content, reason):
    path = some_run(folder) / name
    path.unlink() if content is None else path.write_text(content)
    (dropped,) = load_runs(folder).dropped
    assert dropped.reason.startswith(reason)


@pytest.mark.parametrize("status", [None, '{"state": "runn', '{"state": "running"}'])
def test_a_result_makes_a_run_finished_whatever_its_status_says(folder, status):
    path = some_run(folder) / "status.json"
    path.unlink() if status is None else path.write_text(status)
    table = load_runs(folder)
    assert len(table) == len(laptop_study.study())
    assert table.dropped == []


def test_runs_of_one_name_are_told_apart_by_their_folders(folder):
    run = some_run(folder)
    name = json.loads((run / "summary.json").read_text())["run"]
    (folder / "more").mkdir()
    again = folder / "more" / "again"
    shutil.copytree(run, again)
    summary = json.loads((again / "summary.json").read_text())
    (again / "summary.json").write_text(json.dumps(summary | {"seed": 7}))
    found = set(load_runs(folder).runs["run"])
    assert {str(run.relative_to(folder)), "more/again"} <= found
    assert name not in found or name == str(run.relative_to(folder))
    assert len(found) == len(laptop_study.study()) + 1


def test_nested_results_of_other_suites_do_not_become_columns(folder):
    summary = some_run(folder) / "summary.json"
    suites = {"convergence": {"x": 1}, "exits": [1], "note": "kept"}
    summary.write_text(json.dumps(json.loads(summary.read_text()) | suites))
    columns = load_runs(folder).runs.columns
    assert "note" in columns
    assert not {"convergence", "exits"} & set(columns)


def test_folder_without_runs(tmp_path):
    assert "holds no run folder" in refusal(tmp_path)


def test_folder_with_only_unusable_runs(folder):
    for path in folder.rglob("status.json"):
        path.write_text('{"state": "running"}')
        (path.parent / "summary.json").unlink()
    message = refusal(folder)
    assert "no usable run" in message
    assert "dropped: " in message
