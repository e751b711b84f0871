"""CSVs as people have them: separators, comments, line ends, few columns, names of their own."""

import pytest

from analysis import AnalysisError, load_runs
from analysis.__main__ import main


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators(published, frame, tmp_path, separator):
    frame["notes"] = "a,b;c"
    path = tmp_path / "runs.csv"
    frame.to_csv(path, index=False, sep=separator)
    table = load_runs(path)
    assert list(table.runs["loss"]) == list(published.runs["loss"])
    assert set(table.runs["notes"]) == {"a,b;c"}
    assert table.warnings == []


def test_comments_byte_order_mark_and_blank_lines(frame, write_csv):
    frame.loc[1, "run"] = "run #2"
    path = write_csv(frame)
    path.write_text("\ufeff# exported, by hand\n\n" + path.read_text().replace("\n", "\n#\n", 5))
    table = load_runs(path)
    assert len(table) == 116
    assert table.runs["run"][1] == "run #2"


def test_line_ends_that_are_part_of_a_cell(frame, write_csv):
    frame["notes"] = ["a\nb", "caf\u2028e", "c\x85d\x0be"] + [""] * 113
    frame = frame.astype({"loss": object})
    path = write_csv(frame)
    assert list(load_runs(path).runs["notes"][:3]) == ["a\nb", "caf\u2028e", "c\x85d\x0be"]
    frame.loc[1, "loss"] = "2,9"
    with pytest.raises(AnalysisError, match=r"row 2 \(line 4\).*'2,9' is not a number \(a decimal"):
        load_runs(write_csv(frame))


def test_an_enormous_cell(frame, write_csv):
    frame["notes"] = "x" * 200_000
    with pytest.raises(AnalysisError, match="no CSV: field larger than field limit"):
        load_runs(write_csv(frame))


def test_three_columns_are_enough_for_a_law_without_recurrences(frame, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    once = frame[frame["r"] == 1]
    columns = {"n_rec": "N", "tokens": "D", "loss": "loss"}
    once[list(columns)].rename(columns=columns).to_csv(path, index=False)
    (note,) = load_runs(path).warnings[:1]
    assert note.startswith("not in the file, and taken: r = 1, n_once = 0, n_inject = 0, train_fl")
    quick = ["--starts=10", "--bootstrap=10", "--law=chinchilla"]
    assert main(["fit", str(path), f"--out={tmp_path / 'out'}", *quick]) == 0
    assert note[1:] in capsys.readouterr().out
    columns["train_flops"] = "C"
    once[list(columns)].rename(columns=columns).to_csv(path, index=False)
    assert main(["isoflop", str(path), f"--out={tmp_path / 'out'}"]) == 0
    assert load_runs(path).runs["budget"].nunique() == 6


def test_five_columns_are_enough_for_the_joint_law(published, frame, write_csv):
    frame["n_once"] += frame["n_inject"]
    runs = load_runs(write_csv(frame[["r", "n_once", "n_rec", "tokens", "loss"]])).runs
    assert list(runs["run"][:2]) == ["row 1", "row 2"]
    executed = runs["n_once"] + runs["r"] * runs["n_rec"]
    assert (runs["train_flops"] / (6 * executed * runs["tokens"]) == 1).all()


def test_columns_of_other_names(frame, write_csv):
    path = write_csv(frame.rename(columns={"n_rec": "params", "tokens": "seen"}))
    table = load_runs(path, columns={"n_rec": "params", "tokens": "seen"})
    assert list(table.runs["tokens"]) == list(frame["tokens"])
    with pytest.raises(AnalysisError, match="no column 'sene'; there are run, budget"):
        load_runs(path, columns={"tokens": "sene"})
    with pytest.raises(AnalysisError, match="column 'loss' is there already, beside 'seen'"):
        load_runs(path, columns={"loss": "seen"})


@pytest.mark.parametrize("text", ["tokens", "tokens=", "params=n_rec"])
def test_columns_on_the_command_line(published_csv, tmp_path, capsys, text):
    with pytest.raises(SystemExit):
        main(["fit", str(published_csv), f"--out={tmp_path}", f"--columns={text}"])
    assert f"'{text}': allowed is OURS=THEIRS with OURS of run, budget" in capsys.readouterr().err


def test_names_reach_neither_a_spreadsheet_nor_a_terminal_raw(frame, write_csv, tmp_path, capsys):
    frame["run"] = "=1+1\x1b[31m" + frame["run"]
    frame["state"] = ["\x1b[2J", *["finished"] * 115]
    path, out = write_csv(frame), tmp_path / "out"
    assert main(["fit", str(path), f"--out={out}", "--starts=5", "--bootstrap=0"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed + (out / "runs.csv").read_text()
    assert r"state is \x1b[2J" in printed
    assert (out / "runs.csv").read_text().splitlines()[1].startswith(r"'=1+1\x1b[31m")
