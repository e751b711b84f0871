"""A run gives the same losses on every mesh, up to the order of sums."""

import json

import pytest
from rich.console import Console

from looped_jax.progress import Display
from looped_jax.training.trainer import train
from tests.tiny_runs import tiny_config


def losses(data, folder, mesh, **data_changes):
    """Training losses of all steps, then the validation loss."""
    config = tiny_config(data.folder)
    config.mesh = mesh
    config.model.head_dim = 4  # of which four heads divide over four devices
    config.evaluation.batch_size = 6  # divides over one device, is filled up on four
    config.data.update(data_changes)
    summary = train(config, folder, "no", Display(Console(quiet=True)))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [*(json.loads(line)["loss"] for line in lines), summary["loss"]]


@pytest.fixture(scope="module")
def on_one_device(data, tmp_path_factory):
    return losses(data, tmp_path_factory.mktemp("run") / "one", "data:1,fsdp:1,tensor:1")


@pytest.mark.parametrize(
    "mesh",
    [
        "data:2,fsdp:2,tensor:2",
        *(
            pytest.param(mesh, marks=pytest.mark.slow)
            for mesh in (
                "data:2,fsdp:1,tensor:1", "data:4,fsdp:1,tensor:1", "data:8,fsdp:1,tensor:1",
                "data:1,fsdp:2,tensor:1", "data:1,fsdp:8,tensor:1", "data:1,fsdp:1,tensor:2",
                "data:1,fsdp:1,tensor:4", "data:4,fsdp:2,tensor:1", "data:4,fsdp:1,tensor:2",
                "data:1,fsdp:4,tensor:2",
            )
        ),
    ],
)  # fmt: skip
def test_the_same_run_on_every_mesh(data, on_one_device, tmp_path, mesh):
    assert losses(data, tmp_path / "run", mesh) == pytest.approx(on_one_device, abs=2e-5)


@pytest.mark.slow
def test_the_same_run_in_microbatches(data, on_one_device, tmp_path):
    found = losses(data, tmp_path / "run", "data:2,fsdp:1,tensor:1", microbatches=4)
    assert found == pytest.approx(on_one_device, abs=2e-5)
