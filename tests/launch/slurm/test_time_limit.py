"""A real Slurm ends a job at its time limit, as often as it takes; minutes, because limits are."""

import json
import re

import pytest

from tests.launch.slurm_long_study import STEPS
from tests.launch.sweeps import SLURM_LONG, folders, losses, states

SECONDS = 1500


@pytest.mark.slow
def test_runs_of_one_job_outlive_its_time_limit(slurm, start, tmp_path):
    job = (
        "--backend=slurm", "--slurm_job=shape", "--slurm_time=2", "--slurm_grace=30", "--wait",
    )  # fmt: skip
    limited = start(tmp_path / "limited", SLURM_LONG, *job, SLURM_CONF=slurm)
    output, errors = limited.communicate(timeout=SECONDS)
    assert (limited.returncode, errors) == (0, ""), output
    assert states(tmp_path / "limited") == dict.fromkeys(STEPS, "finished")
    logs = "".join(path.read_text() for path in tmp_path.glob("limited/slurm/*/*_log.out"))
    assert re.search(r"^time is up; job \d+ requeued$", logs, re.M)

    alone = start(tmp_path / "alone", SLURM_LONG, "--workers=1")
    output, errors = alone.communicate(timeout=SECONDS)
    assert (alone.returncode, errors) == (0, ""), output
    assert losses(tmp_path / "limited") == losses(tmp_path / "alone")
    lines = (folders(tmp_path / "limited")["long"].path / "metrics.jsonl").read_text().splitlines()
    steps = [line["step"] for line in map(json.loads, lines) if "loss" in line]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS["long"]
