import pytest

from launch.slurm.preview import describe_jobs, most_gpus
from launch.slurm.resources import Resources
from launch.study import load_study
from looped_jax.errors import UserError
from tests.launch.sweeps import PLANNED

GPUS = Resources(gpus=8, time="24:00:00", at_once=2, options=("account=looped",))


def test_the_script_of_a_job_is_shown_without_a_slurm(tmp_path):
    study = load_study(PLANNED, tmp_path)
    text = describe_jobs(study, [[run] for run in study.runs], tmp_path, GPUS)
    first, _, script = text.partition(":\n\n")
    assert first == (
        "3 jobs in 1 array; up to 2 at a time; each 1 node × 8 GPUs, 1 process, 24:00:00"
    )
    for line in ("--array=0-2%2", "--gpus-per-node=8", "--time=24:00:00", "--account=looped",
                 "--requeue", "--signal=USR2@120"):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert "\nsrun --unbuffered --output " in script
    assert not list(tmp_path.iterdir())


def test_each_layout_of_processes_has_a_script(tmp_path):
    study = load_study(PLANNED, tmp_path, changes=["--config.processes.count=2"])
    plain = load_study(PLANNED, tmp_path)
    groups = [study.runs, plain.runs]
    text = describe_jobs(study, groups, tmp_path, Resources(tasks=1, cpus=4))
    assert text.count("#!/bin/bash") == 2
    assert "1 job in 1 array; up to 1 at a time; each 2 nodes × 4 CPU cores, 2 processes, " in text
    assert "#SBATCH --array" not in text


def test_resources_that_do_not_fit_are_refused(tmp_path):
    study = load_study(PLANNED, tmp_path, changes=["--config.processes.count=3"])
    with pytest.raises(UserError, match=r"r1_100: processes.count = 3 with --slurm_tasks=1 on 2"):
        describe_jobs(study, [study.runs], tmp_path, Resources(nodes=2))


def test_gpus_of_nodes_that_follow_from_the_processes(tmp_path):
    """Nobody gave --slurm_nodes: two processes, one on each node."""
    study = load_study(PLANNED, tmp_path, changes=["--config.processes.count=2"])
    assert most_gpus(study, Resources(gpus=8)) == 16
    assert most_gpus(load_study(PLANNED, tmp_path), GPUS) == 8
