import pytest

from launch.slurm.resources import Layout, Resources
from looped_jax.errors import UserError


@pytest.mark.parametrize(
    ("options", "processes", "layout"),
    [
        ({}, 1, Layout(1, 1)),
        ({}, 4, Layout(4, 1)),
        ({"tasks": 2}, 1, Layout(1, 1)),
        ({"tasks": 2}, 2, Layout(1, 2)),
        ({"tasks": 8, "gpus": 8}, 32, Layout(4, 8)),
        ({"tasks": 1, "gpus": 8}, 4, Layout(4, 1)),
        ({"tasks": 8, "gpus": 8}, 1, Layout(1, 1)),  # one process for all GPUs of a node
        ({"tasks": 8, "nodes": 2}, 6, Layout(2, 3)),
    ],
)
def test_processes_are_laid_out(options, processes, layout):
    assert Resources(**options).layout(processes) == layout


@pytest.mark.parametrize(
    ("options", "processes", "message"),
    [
        ({"tasks": 4}, 7, r"processes.count = 7 with --slurm_tasks=4 on 2 nodes; allowed: as many"),
        (
            {"nodes": 1},
            2,
            r"processes.count = 2 with --slurm_tasks=1 on 1 node; allowed",
        ),
        ({"tasks": 4, "gpus": 8}, 8, r"--slurm_gpus=8 with 4 processes on a node; allowed: one"),
    ],
)
def test_what_leaves_processes_or_gpus_over_is_refused(options, processes, message):
    with pytest.raises(UserError, match=message):
        Resources(**options).layout(processes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 0}, "--slurm_tasks=0; allowed: at least 1"),
        ({"nodes": 0}, "--slurm_nodes=0; allowed: at least 1"),
        ({"gpus": -1}, "--slurm_gpus=-1; allowed: at least 0"),
        ({"options": ["--mem=4G"]}, "--slurm_option=--mem=4G; allowed: name=value"),
        ({"options": ["=4G"]}, "--slurm_option==4G; allowed: name=value"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        Resources(**options)


def test_other_options_are_passed_on():
    given = Resources(options=["account=looped", "exclusive", "comment=a=b"])
    assert given.extra == {"account": "looped", "exclusive": True, "comment": "a=b"}
