"""What fits: the search, with a device's bytes as a formula in place of a compiler."""

import dataclasses

import pytest

from looped_jax import parallel
from looped_jax.config import resolve
from looped_jax.training.fitting import Fitting, find_fitting, largest_batch
from tests.tiny_runs import tiny_config

SIZES = {"data": 4, "fsdp": 2, "tensor": 1}


def asked(batch_size=128):
    config = tiny_config("nowhere")
    config.mesh, config.data.batch_size = "data:-1,fsdp:2,tensor:1", batch_size
    return resolve(config)


def peak_of(run):
    """16 bytes of state over fsdp, 10 for each sequence of a part."""
    sizes = SIZES | {k: v for k, v in parallel.mesh_sizes(run.mesh).items() if v != -1}
    return 160 // sizes["fsdp"] + 10 * run.data.batch_size // 8 // run.data.microbatches


@pytest.mark.parametrize(
    ("memory", "microbatches", "mesh"),
    [(240, 1, "data:-1,fsdp:2,tensor:1"), (239, 2, "data:-1,fsdp:2,tensor:1"),
     (95, 16, "data:-1,fsdp:2,tensor:1"), (60, 8, "data:2,fsdp:4,tensor:1"),
     (30, 16, "data:1,fsdp:8,tensor:1")],
)  # fmt: skip
def test_the_fewest_microbatches_that_fit(memory, microbatches, mesh):
    found = find_fitting(asked(), SIZES, memory, peak_of)
    assert (found.run.data.microbatches, found.run.mesh) == (microbatches, mesh)
    assert found.peak_bytes == peak_of(found.run) <= memory
    same_mesh = mesh == asked().mesh
    assert ("--config.mesh=" in found.overrides(asked())) != same_mesh


def test_nothing_fits():
    assert find_fitting(asked(), SIZES, 29, peak_of) is None


def test_the_largest_batch():
    found = largest_batch(Fitting(asked(8), 90), 170, peak_of)
    assert (found.run.data.batch_size, found.peak_bytes) == (64, 160)
    assert found.run == dataclasses.replace(
        asked(8), data=dataclasses.replace(asked(8).data, batch_size=64)
    )
