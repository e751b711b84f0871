"""What of a run fits into the memory of its devices: microbatches, a batch, or another mesh."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from looped_jax.config import RunConfig


class Fitting(NamedTuple):
    """A config with another batch, number of parts or mesh, and the bytes it needs of a device."""

    run: RunConfig
    peak_bytes: int

    def overrides(self, asked: RunConfig) -> str:
        """The flags that make `asked` this."""
        changed = [f"--config.data.microbatches={self.run.data.microbatches}"]
        if self.run.mesh != asked.mesh:
            changed.append(f"--config.mesh={self.run.mesh}")
        return " ".join(changed)


def find_fitting(
    run: RunConfig, sizes: dict[str, int], memory_bytes: float, peak_of: Callable[[RunConfig], int]
) -> Fitting | None:
    """The fewest microbatches whose step fits, on the mesh or on one that splits parameters more.

    Args:
      run: what is asked for.
      sizes: devices by axis of its mesh.
      memory_bytes: that a device has.
      peak_of: bytes that a device needs for a run's step; more microbatches need fewer.

    Returns:
      None where even one sequence a device does not fit, with parameters split over all devices.
    """
    for mesh in _meshes(sizes):
        ways = mesh["data"] * mesh["fsdp"]
        rows = run.data.batch_size // ways
        text = ",".join(f"{axis}:{size}" for axis, size in mesh.items())
        if mesh == sizes:
            text = run.mesh
        counts = [count for count in range(1, rows + 1) if rows % count == 0]
        found = _fewest(dataclasses.replace(run, mesh=text), counts, memory_bytes, peak_of)
        if found is not None:
            return found
    return None


def largest_batch(
    fits: Fitting, memory_bytes: float, peak_of: Callable[[RunConfig], int]
) -> Fitting:
    """The batch doubled as often as it fits, in as many microbatches."""
    while True:
        batch_size = 2 * fits.run.data.batch_size
        data = dataclasses.replace(fits.run.data, batch_size=batch_size)
        tried = dataclasses.replace(fits.run, data=data)
        peak = peak_of(tried)
        if peak > memory_bytes:
            return fits
        fits = Fitting(tried, peak)


def _meshes(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """The mesh, then those of as many devices that split parameters over 2, 4, … times as many."""
    data, fsdp = sizes["data"], sizes["fsdp"]
    while True:
        yield {**sizes, "data": data, "fsdp": fsdp}
        if data % 2:
            return
        data, fsdp = data // 2, fsdp * 2


def _fewest(
    run: RunConfig,
    counts: list[int],
    memory_bytes: float,
    peak_of: Callable[[RunConfig], int],
) -> Fitting | None:
    """The run in the first of these ascending numbers of parts that fits, found by bisection."""
    found, low, high = None, 0, len(counts) - 1
    middle = high  # the most parts first: where these do not fit, nothing does
    while low <= high:
        parts = dataclasses.replace(run.data, microbatches=counts[middle])
        tried = dataclasses.replace(run, data=parts)
        peak = peak_of(tried)
        if peak <= memory_bytes:
            found, high = Fitting(tried, peak), middle - 1
        elif found is None:
            return None
        else:
            low = middle + 1
        middle = (low + high) // 2
    return found
