"""`fit` and `reproduce` as they are typed: files, exit status, one line for what is wrong."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.errors import AnalysisError
from analysis.scaling.commands.reproduce import STUDIES, compare
from analysis.scaling.study import Settings, fit_study
from analysis.tables.files import write_text
from analysis.tables.progress import Progress

ROOT = Path(__file__).parents[2]
QUICK = ["--starts=4", "--bootstrap=6"]


def test_fit_writes_and_prints(published_csv, tmp_path, capsys):
    assert main(["fit", str(published_csv), f"--out={tmp_path / 'new' / 'out'}", *QUICK]) == 0
    out = tmp_path / "new" / "out"
    assert sorted(path.name for path in out.iterdir()) == ["bootstrap.csv", "fit.json", "runs.csv"]
    result = json.loads((out / "fit.json").read_text())
    assert result["params"]["phi"] == pytest.approx(0.4575855, abs=1e-6)
    assert result["provenance"]["command"].startswith("python -m analysis fit ")
    assert len(pd.read_csv(out / "bootstrap.csv")) == 6
    assert len(pd.read_csv(out / "runs.csv")) == 116
    printed = capsys.readouterr().out
    assert "injection matrix counted recurrent" in printed
    assert printed.rstrip().endswith(str(out / "fit.json"))


def test_the_recorded_command_repeats_the_result(published_csv, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    where = "--where=r in (1, 8)"
    main(["fit", str(published_csv), f"--out={first}", "--seed=3", where, *QUICK])
    result = json.loads((first / "fit.json").read_text())
    command = result["provenance"]["command"].replace(str(first), str(second))
    python, dash_m, package, *arguments = shlex.split(command)
    assert (python, dash_m, package) == ("python", "-m", "analysis")
    assert main(arguments) == 0
    again = json.loads((second / "fit.json").read_text())
    for part in (result, again):
        part["provenance"].pop("time")
        part["provenance"].pop("command")
    assert again == result


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--phi=0.5"], {"phi": 0.5}),
        (["--phi=FREE"], {"phi": None}),
        (["--law=chinchilla"], {"law": "chinchilla"}),
        (["--starts=7", "--bootstrap=9", "--seed=3"], {"starts": 7, "resamples": 9, "seed": 3}),
        (["--unit=run"], {"unit": "run"}),
        (["--holdout"], {"holdout": 1}),
        (["--holdout=3"], {"holdout": 3}),
        (["--injection=excluded"], {"injection": "excluded"}),
        (["--where=r < 8"], {"runs": 87}),
    ],
)
def test_options_reach_the_fit(
    published_csv, tmp_path, monkeypatch, published_study, options, expected
):
    seen = {}

    def fit_study(table, settings, **_):
        seen.update(vars(settings), injection=table.injection, runs=len(table))
        return published_study

    monkeypatch.setattr("analysis.scaling.commands.fit.fit_study", fit_study)
    assert main(["fit", str(published_csv), f"--out={tmp_path}", *options]) == 0
    assert expected.items() <= seen.items()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--where=r == 4"], "φ is not identified: all 29 runs have r = 4"),
        (["--where=r = 4"], "is not a condition on the columns"),
        (["--phi=7"], "phi 7: allowed is -3 to 3"),
        (["--holdout=6"], "holdout 6: allowed is 1 to 5"),
    ],
)
def test_unusable_input_is_one_line_and_status_2(published_csv, tmp_path, capsys, options, problem):
    out = tmp_path / "out"
    assert main(["fit", str(published_csv), f"--out={out}", *QUICK, *options]) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(r"python -m analysis: error: [^\n]*\n", captured.err)
    assert problem in captured.err
    assert captured.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--phi=half"], "'half' is neither FREE nor a number"),
        (["--starts=0"], "0 is less than 1"),
        (["--bootstrap=many"], "'many' is not a whole number"),
        (["--law=power"], "invalid choice: 'power'"),
        (["--bootstrp=3"], "unrecognized arguments"),
    ],
)
def test_wrong_call_is_status_2(published_csv, tmp_path, capsys, options, problem):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", str(published_csv), f"--out={tmp_path / 'out'}", *options])
    assert stopped.value.code == 2
    assert problem in capsys.readouterr().err


def test_no_command_is_status_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_unwritable_output_is_refused_before_any_work(published_csv, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("analysis.scaling.commands.fit.fit_study", None)
    (tmp_path / "file").write_text("not a folder")
    assert main(["fit", str(published_csv), f"--out={tmp_path / 'file'}", *QUICK]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "not a folder"


def test_interruption_is_quiet(published_csv, tmp_path, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("analysis.scaling.commands.fit.fit_study", interrupt)
    assert main(["fit", str(published_csv), f"--out={tmp_path / 'out'}"]) == 130


def test_a_reader_that_has_gone_gets_no_traceback_and_the_files(published_csv, tmp_path):
    words = [sys.executable, "-m", "analysis", "isoflop", str(published_csv), f"--out={tmp_path}"]
    command = f"{shlex.join(words)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")
    assert (tmp_path / "isoflop.json").exists()


def test_a_full_disk_is_a_line(published_csv, tmp_path, capsys, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "isoflop.json")

    monkeypatch.setattr("analysis.page.output.write_text", full)
    assert main(["isoflop", str(published_csv), f"--out={tmp_path}"]) == 1
    said = "python -m analysis: cannot write isoflop.json: No space left on device\n"
    assert capsys.readouterr().err == said


def test_files_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "fit.json"
    write_text(path, "old")
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AnalysisError, match="cannot be written: No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- reproduce -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(published) -> pd.DataFrame:
    return compare("schwethelm2026", fit_study(published, Settings(starts=4, resamples=100)))


@pytest.mark.parametrize(
    ("quantities", "tolerance"),
    [
        (["phi"], 0.005),
        (["phi ci95 low", "phi ci95 high"], 0.03),
        (["alpha", "beta"], 0.006),
        (["E"], 0.016),
        (["r2"], 0.001),
        (["mean", "max_abs", "rmse"], 0.002),
        (["objective"], 1e-6),
        (["lowest gap", "highest gap"], 0.005),
        (["unique", "effective"], 0.01),
    ],
)
def test_published_tables_are_reproduced(compared, quantities, tolerance):
    chosen = compared[compared["quantity"].isin(quantities)]
    assert len(chosen) >= len(quantities)
    worst = chosen.loc[chosen["difference"].abs().idxmax()]
    assert abs(worst["difference"]) <= tolerance, worst


def test_r2_of_all_but_the_worst_fit(compared):
    chosen = compared[(compared["quantity"] == "r2") & (compared["row"] != "φ fixed to 1")]
    assert chosen["difference"].abs().max() <= 3e-4


def test_every_published_number_is_compared(compared):
    published_numbers = pd.read_csv(STUDIES["schwethelm2026"][2])
    assert len(compared) == len(published_numbers) == 71
    assert compared["ours"].notna().all()


def test_reproduce_prints_line_by_line(capsys):
    assert main(["reproduce", "schwethelm2026", *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    phi = next(line for line in lines if line.startswith("joint, all 116"))
    assert phi.split()[-4:] == ["φ", "0.459", "0.4576", "-0.0014"]
    assert "residuals of the joint law, nats" in lines
    assert any("arXiv:2604.21106" in line for line in lines)


def test_unknown_study_is_status_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "nobody1999"])
    assert stopped.value.code == 2


# --- progress ------------------------------------------------------------------------------------


class Stream:
    def __init__(self, terminal: bool) -> None:
        self.terminal, self.text = terminal, ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_counts_and_estimates(monkeypatch, terminal):
    clock = iter([0.0, 1.0, 10.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stream = Stream(terminal)
    progress = Progress(1000, "fits", stream)
    progress.start("first", 500)  # after 1 s: quiet
    assert stream.text == ""
    progress.start("second", 250)  # after 10 s, 500 done
    assert "500 of 1,000 fits, 50/s, about 10 s left: second" in stream.text
    progress.start("third", 250)
    progress.finish()
    assert stream.text.endswith("\r\x1b[K" if terminal else "third\n")
