"""What a run will take, before it runs: parameters, FLOPs, and bytes on every device.

The step is compiled for the config's mesh and nothing is allocated, so devices may be simulated
(`JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=64`) and no data need be there. On them the bytes that
lie on a device between steps are exact; the temporary ones are those of the platform's compiler.
With the memory of a device the plan also says what would fit.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from looped_jax import parallel, topology
from looped_jax.config import RunConfig
from looped_jax.cpu_devices import mesh_of_run
from looped_jax.errors import UserError
from looped_jax.model.accounting import Parameters, count_parameters
from looped_jax.training import state as states
from looped_jax.training.fitting import Fitting, find_fitting, largest_batch
from looped_jax.training.roofline import chip_of, roofline
from looped_jax.training.start.attention import attention_of
from looped_jax.training.start.data import describe_epochs, open_data
from looped_jax.training.step import lower_step

CPU_TEMPORARIES = """\
The temporary bytes are those of the CPU's compiler. What it does not tell of accelerators: it
computes bfloat16 in float32, keeps the T x T attention weights of a layer that fused attention
never forms, and counts neither buffers of collectives nor what a GPU's allocator sets aside."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The numbers of a planned run.

    Attributes:
      run: its config.
      parameters: by part.
      mesh: devices by axis.
      device_kind: what the step was compiled for.
      attention: the kernel, and why it.
      bytes_per_device: by part: "parameters", "optimiser state", "batch", and "temporary", which
        are gradients and activations.
      peak_bytes: their sum, with the program and what the step returns: the most at one time. None
        where there is no compiler.
      text: how much training text there is, and how often the run sees it.
      fits: whether it fits into the memory of a device, and what would; "" where that is unknown.
      bound: the least time of a step by part, of devices that are not here; or "".
    """

    run: RunConfig
    parameters: Parameters
    mesh: Mapping[str, int]
    device_kind: str
    attention: str
    bytes_per_device: Mapping[str, int]
    peak_bytes: int | None
    text: str
    fits: str
    bound: str

    def table(self) -> str:
        """All numbers as lines of plain text."""
        run, n = self.run, self.parameters
        tokens = run.steps * run.batch_tokens
        devices = math.prod(self.mesh.values())
        parts = {
            field.name: getattr(n, field.name)
            for field in dataclasses.fields(n)
            if not field.name.startswith("n_")
        }
        lines = [
            f"{run.name}: {run.steps:,} steps of {run.batch_tokens:,} tokens, {tokens:.4g} in all",
            self.text,
            f"mesh {','.join(f'{axis}:{size}' for axis, size in self.mesh.items())}: "
            f"{devices:,} x {self.device_kind}",
            self.attention,
            "",
            _line("parameters", f"{n.total:,}"),
            *(_line(f"  {part}", f"{count:,}") for part, count in parts.items() if count),
            _line("matrices, executed once", f"{n.n_once:,}"),
            _line("  in the recurrent block", f"{n.n_rec:,}"),
            _line("  in the injection", f"{n.n_inject:,}"),
            "",
            _line("training FLOPs per token", f"{run.flops_per_token:.4g}"),
            _line("  of the run", f"{run.flops_per_token * tokens:.4g}"),
            "",
            _line("bytes per device, at the peak", _size(self.peak_bytes))
            if self.peak_bytes is not None
            else "bytes per device, but for gradients and activations",
            *(_line(f"  {part}", _size(size)) for part, size in self.bytes_per_device.items()),
        ]
        if self.bound:
            lines += ["", self.bound]
        if self.fits:
            lines += ["", self.fits]
        if self.device_kind == "cpu":
            lines += ["", CPU_TEMPORARIES]
        return "\n".join(lines)


def plan(
    run: RunConfig,
    memory_bytes: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    on: str = "",
) -> Plan:
    """Compiles the run's step, without running it, and counts.

    Args:
      memory_bytes: of a device; None for what the devices themselves say, if they do.
      say: hears of every further program that is compiled to find what fits.
      on: a topology of devices that are not here, such as "v5e:2x4" or "H100:8"; "": those here.

    Raises:
      UserError: the mesh is not for these devices, parameters or batch do not divide over it, or
        the devices' compiler does not say what memory a program takes.
    """
    mesh = topology.mesh_of(on, run.mesh) if on else mesh_of_run(run)
    kernel, attention = attention_of(run, mesh)
    held = bytes_between_steps(run, cast(Mesh, mesh))
    bound = roofline(run, dict(mesh.shape), chip_of(on), kernel).table() if on else ""
    if isinstance(mesh, AbstractMesh):
        kind = topology.GPUS[on.partition(":")[0]]
        return Plan(
            run, count_parameters(run.model), dict(mesh.shape), kind, attention, held, None,
            _describe_text(run), "", bound,
        )  # fmt: skip
    peak, temporary = _compiled_bytes(run, mesh)
    if memory_bytes is None and not on:
        memory_bytes = (mesh.devices.flat[0].memory_stats() or {}).get("bytes_limit")
    return Plan(
        run,
        count_parameters(run.model),
        dict(mesh.shape),
        mesh.devices.flat[0].device_kind,
        attention,
        {**held, "temporary": temporary},
        peak,
        _describe_text(run),
        "" if memory_bytes is None else _describe_fit(run, mesh, memory_bytes, peak, say, on),
        bound,
    )


def bytes_between_steps(run: RunConfig, mesh: Mesh) -> dict[str, int]:
    """Bytes on every device by part, exactly: what is there before a step and after it.

    Nothing is compiled, and the mesh may be an abstract one.

    Raises:
      UserError: parameters or batch do not divide over the mesh.
    """
    parallel.check_batch(mesh, "data", run.data.batch_size, run.data.microbatches)
    state = states.abstract_state(run.model, states.make_optimizer(run.optimizer.rule), mesh)
    tokens = (run.data.batch_size, run.data.sequence_length + 1)
    return {
        "parameters": _bytes_on_a_device(state.params),
        "optimiser state": _bytes_on_a_device(state.optimizer),
        "batch": math.prod(parallel.rows(mesh).shard_shape(tokens)) * np.dtype(np.int32).itemsize,
    }


def _compiled_bytes(run: RunConfig, mesh: Mesh) -> tuple[int, int]:
    """(All bytes at the peak, those of them that are temporary) of the compiled step."""
    memory = lower_step(run, mesh).compile().memory_analysis()
    if memory is None:
        kind = mesh.devices.flat[0].device_kind
        raise UserError(f"devices {kind!r} do not say what memory a program takes")
    # The new state takes the place of the old one: outputs that are aliased count once.
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    return peak, memory.temp_size_in_bytes


def _describe_fit(
    run: RunConfig, mesh: Mesh, memory_bytes: float, peak: int, say: Callable[[str], None], on: str
) -> str:
    """Whether the run fits, and what would."""
    share = f"{_size(peak)} of {_size(memory_bytes)} a device"

    def peak_of(tried: RunConfig) -> int:
        data = tried.data
        say(f"compiling: {data.batch_size} sequences in {data.microbatches} microbatches on mesh "
            f"{tried.mesh}")  # fmt: skip
        where = topology.mesh_of(on, tried.mesh) if on else mesh_of_run(tried)
        assert isinstance(where, Mesh)
        return _compiled_bytes(tried, where)[0]

    if peak <= memory_bytes:
        largest = largest_batch(Fitting(run, peak), memory_bytes, peak_of)
        return (
            f"it fits: {share}\nlargest batch that fits, by doubling: "
            f"{largest.run.data.batch_size:,} sequences, {_size(largest.peak_bytes)}"
        )
    found = find_fitting(run, dict(mesh.shape), memory_bytes, peak_of)
    if found is None:
        return f"it does not fit: {share}; nor does one sequence a device on any mesh of them"
    return (
        f"it does not fit: {share}\nit would with {found.overrides(run)}: {_size(found.peak_bytes)}"
    )


def _describe_text(run: RunConfig) -> str:
    if not Path(run.data.folder).exists():
        return f"epochs: not known, {run.data.folder} is not here"
    return describe_epochs(run, open_data(run))


def _bytes_on_a_device(tree: Any) -> int:
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _line(name: str, value: str) -> str:
    return f"{name:<32}{value:>16}"


def _size(count: float) -> str:
    """1536 as 1.5 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
