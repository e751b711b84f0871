"""Studies as a user runs them: to their end, again, interrupted, killed, with bad runs."""

import contextlib
import os
import re
import shutil
import signal

import pytest

from tests.launch.sweeps import (
    BROKEN,
    TINY,
    Sweeps,
    folders,
    losses,
    saved_steps,
    states,
    wait_until,
)

NAMES = ["r2_100", "r2_200"]
# One process starts, and compiles, in less time than two.
ALONE = "--workers=1"


@pytest.fixture(scope="module")
def first_call(data, environment, tmp_path_factory):
    """(folder, output) of a study that one call ran to its end."""
    out = tmp_path_factory.mktemp("undisturbed") / "study"
    with contextlib.closing(Sweeps(data, environment)) as sweeps:
        status, output, _ = sweeps.run(out, TINY, ALONE, JAX_LOG_COMPILES="1")
    assert status == 0
    return out, output


@pytest.fixture
def undisturbed(first_call):
    return first_call[0]


def test_a_study_is_run_to_its_end_and_not_again(first_call, sweep):
    undisturbed, output = first_call
    assert "study tiny: 2 runs" in output
    for name in NAMES:
        assert re.search(rf"^finished {name}: loss \d\.\d{{4}} nats \(\d:\d\d, ", output, re.M)
        assert re.search(rf"^{name} .* finished$", output, re.M)
    assert "\x1b" not in output
    assert sorted(losses(undisturbed)) == NAMES

    first, second = (
        (folders(undisturbed)[name].path / "output.log").read_text() for name in NAMES[::-1]
    )
    for program in ("jit(step)", "jit(score)"):
        assert f"compilation of {program}" in first
        assert f"compilation of {program}" not in second

    before = {path: path.stat().st_mtime_ns for path in undisturbed.glob("runs/*/*")}
    status, output, errors = sweep(undisturbed)
    assert (status, errors) == (0, "")
    assert "2 finished, 0 to do" in output
    assert before == {path: path.stat().st_mtime_ns for path in undisturbed.glob("runs/*/*")}


def test_interrupted_refused_and_killed_it_goes_on_to_the_same_losses(
    undisturbed, tmp_path, start, sweep
):
    first = start(tmp_path, TINY, ALONE)
    wait_until(lambda: saved_steps(tmp_path) >= 50, "a checkpoint")
    first.send_signal(signal.SIGINT)
    output, errors = first.communicate(timeout=60)
    assert (first.returncode, errors) == (130, "")
    assert re.search(
        r"^interrupted: [01] of 2 runs finished; go on: python -m launch", output, re.M
    )
    assert "interrupted" in states(tmp_path).values()

    second = start(tmp_path, TINY, ALONE)
    wait_until(lambda: "running" in states(tmp_path).values(), "the second start")
    running = [s for f in folders(tmp_path).values() if (s := f.status()) and s.state == "running"]
    workers = {status.pid for status in running}
    for pid in (second.pid, *workers):  # it must not end while another start is refused
        os.kill(pid, signal.SIGSTOP)
    status, output, errors = sweep(tmp_path)
    assert (status, output) == (2, "")
    assert errors == f"error: a sweep is already at work in {tmp_path}: pid {second.pid}\n"
    second.kill()  # kill -9: nobody tells the workers
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    second.communicate()

    status, output, errors = sweep(tmp_path)
    assert (status, errors) == (0, "")
    assert losses(tmp_path) == losses(undisturbed)
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_one_status_cut_in_half_is_no_obstacle(undisturbed, tmp_path, sweep):
    out = tmp_path / "study"
    shutil.copytree(undisturbed, out)
    cut = folders(out)["r2_100"]
    cut.summary_path.unlink()
    cut.status_path.write_text(cut.status_path.read_text()[:25])
    status, output, errors = sweep(out)
    assert (status, errors) == (0, "")
    assert "1 finished, 1 to do" in output
    assert losses(out) == losses(undisturbed)


def test_bad_runs_are_named_and_the_study_goes_on(tmp_path, start, sweep):
    process = start(tmp_path, BROKEN, ALONE)
    wait_until(lambda: states(tmp_path).get("is_killed") == "running", "the run to kill")
    os.kill(folders(tmp_path)["is_killed"].status().pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (1, "")
    assert states(tmp_path) == {
        "diverges": "diverged", "fails": "failed", "is_killed": "failed", "is_good": "finished",
    }  # fmt: skip
    summary = output[output.index("3 of 4 runs did not finish") :]
    assert "failed is_killed: its process was killed by SIGKILL" in summary
    assert re.search(r"^diverged diverges: .* in steps \d+ to \d+", summary, re.M)
    assert re.search(r"^failed fails: .*model.vocab_size = 200", summary, re.M)
    assert re.search(r"output.log ends:\n    error: model.vocab_size = 200", summary)
