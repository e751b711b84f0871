import pytest

from launch.machine import Machine
from launch.shown import estimate
from launch.shown.estimate import describe_plan
from launch.study import load_study
from tests.launch.sweeps import PLANNED


@pytest.fixture
def study(tmp_path):
    return load_study(PLANNED, tmp_path)


def last_line(*arguments):
    return describe_plan(*arguments).splitlines()[-1]


def test_a_given_rate_tells_the_time(study):
    longest = max(run.flops for run in study.runs)
    assert study.flops < 3 * longest
    line = last_line(study, 1, True, study.flops / 50)
    assert line.startswith(f"tiny: 3 of 3 runs to do, {study.flops:.2e} FLOPs in all; about 0:50 ")
    assert line.endswith("for 1 worker at " + f"{study.flops / 50:.2e} FLOP/s each (given)")
    # However many places there are, the longest run takes its time.
    assert "about 0:50 for up to 100 jobs at" in last_line(study, 100, False, longest / 50)


def test_the_rate_of_finished_runs_comes_before_a_guess(study, monkeypatch):
    monkeypatch.setattr(estimate, "this_machine", lambda: Machine("cpu", 8, 1e9))
    assert "at 1.00e+08 FLOP/s each (assumed: 20% of" in last_line(study, 2, True, None)
    assert last_line(study, 2, False, None).endswith(
        "FLOPs in all; no run has told how long they take: --peak_flops and --share estimate it"
    )
    run = study.runs[0]
    run.folder.path.mkdir(parents=True)
    run.folder.write_summary({"loss": 3.0, "seconds": run.flops / 1e6})
    line = last_line(study, 2, True, None)
    assert "2 of 3 runs to do" in line
    assert "at 1.00e+06 FLOP/s each (the rate of the finished runs)" in line
