import jax
import pytest

from looped_jax import processes
from looped_jax.errors import UserError
from looped_jax.training.trainer import train
from tests.tiny_runs import tiny_config

NAMES = [name for _, *names in processes._LAUNCHERS for name in names]
MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def launched_with(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_launcher_is_recognised(monkeypatch):
    assert processes.launched() is None
    launched_with(monkeypatch, SLURM)
    assert processes.launched() == processes.Launch("Slurm", 1, 4)
    # What is set by hand comes before what a scheduler set.
    launched_with(monkeypatch, {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2"})
    assert processes.launched() == processes.Launch("JAX_NUM_PROCESSES", 0, 2)


def test_a_batch_script_is_no_process_of_a_step(monkeypatch):
    launched_with(monkeypatch, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    assert processes.launched() is None


@pytest.mark.parametrize(
    ("variables", "count", "message"),
    [
        (SLURM, 1, r"config.processes.count = 1, and Slurm started 4 processes"),
        (SLURM, 2, r"config.processes.count = 2, and Slurm started 4 processes"),
        (MPI, 2, r"count = 2, and Open MPI started 1 process:"),
        ({}, 2, r"count = 2, and nothing says where the others are .* set JAX_COORDINATOR_ADDRESS"),
        ({"JAX_NUM_PROCESSES": "2"}, 2, r"JAX_PROCESS_ID = None and JAX_NUM_PROCESSES = 2; allow"),
        (SLURM | {"SLURM_PROCID": "4"}, 4, r"SLURM_PROCID = 4 and SLURM_STEP_NUM_TASKS = 4; allow"),
    ],
)  # fmt: skip
def test_another_number_of_processes_is_refused(monkeypatch, variables, count, message):
    launched_with(monkeypatch, variables)
    monkeypatch.setattr(jax._src.xla_bridge, "backends_are_initialized", lambda: False)
    with pytest.raises(UserError, match=message):
        processes.connect(count, 1)


def test_one_process_has_nothing_to_join(monkeypatch):
    processes.connect(1, 1)
    launched_with(monkeypatch, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    processes.connect(1, 1)
    assert not jax.distributed.is_initialized()


def test_training_needs_the_processes_of_its_config(tmp_path):
    config = tiny_config("nowhere")
    config.processes.count = 2
    with pytest.raises(UserError, match=r"config.processes.count = 2, and 1 are connected"):
        train(config, tmp_path / "run", "may", None)


def test_alone_everything_is_decided_here():
    assert processes.on_process_0(lambda: {"a": (1, 2)}) == {"a": (1, 2)}
    assert processes.everywhere(lambda: "data") == "data"
    assert processes.largest(15) == 15
    processes.same_everywhere("the digest", "abc")
