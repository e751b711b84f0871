import os

import pytest

from launch import machine
from launch.machine import Machine, worker_environments
from looped_jax.errors import UserError


@pytest.fixture
def on(monkeypatch):
    """Lets JAX find another machine than this one, and sets what the user's environment holds."""

    def on(platform, devices, **environment):
        monkeypatch.setattr(machine, "_may_have_accelerators", lambda: True)
        monkeypatch.setattr(machine, "this_machine", lambda: Machine(platform, devices, 1e12))
        for name in ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return on


@pytest.mark.parametrize(
    ("workers", "threads"), [(None, ["1"] * 4), (1, ["4"]), (3, ["1"] * 3), (8, ["1"] * 8)]
)
def test_cores_are_shared_out(monkeypatch, workers, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    assert [e["NPROC"] for e in worker_environments(workers)] == threads


def test_each_gpu_has_a_worker(on):
    on("gpu", 3)
    assert worker_environments(None) == [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(3)]
    assert worker_environments(2) == [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(2)]


def test_gpus_that_the_user_hides_stay_hidden(on):
    on("gpu", 2, CUDA_VISIBLE_DEVICES="4,GPU-12")
    assert [e["CUDA_VISIBLE_DEVICES"] for e in worker_environments(None)] == ["4", "GPU-12"]


def test_workers_of_one_gpu_share_its_memory(on):
    on("gpu", 2)
    assert worker_environments(3) == [
        {"CUDA_VISIBLE_DEVICES": gpu, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"} for gpu in "010"
    ]
    on("gpu", 1, XLA_PYTHON_CLIENT_MEM_FRACTION="0.2")
    assert worker_environments(2) == [{"CUDA_VISIBLE_DEVICES": "0"}] * 2


def test_a_tpu_host_has_one_worker(on):
    on("tpu", 4)
    assert worker_environments(None) == [{}]
    with pytest.raises(UserError, match=r"--workers=2; allowed on a tpu: 1, for all chips"):
        worker_environments(2)


def test_no_workers_are_refused():
    with pytest.raises(UserError, match=r"--workers=0; allowed: at least 1"):
        worker_environments(0)


def test_this_machine_is_measured():
    found = machine.this_machine()
    assert found.platform == "cpu"
    assert found.flops_per_second > 1e8
