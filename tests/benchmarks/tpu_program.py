"""What the TPU compiler makes of a step, without a TPU: compile time, size, memory, collectives.

    pip install -r requirements-tpu-compile.txt
    JAX_PLATFORMS=cpu python -m tests.benchmarks.tpu_program \\
      --config=configs/isodepth.py:r=4,s=10 --against=configs/isodepth.py:r=1,s=10 \\
      [--topology=v5e:2x4] [--config.mesh=data:8,fsdp:1,tensor:1]

One program takes one to three minutes of a core. Seconds are of the processor (all threads), which
other work on the machine changes little. Collectives sum the results of such instructions in the
program, those in loops once. With --against the ratios of two configs come last.
"""

import re
import time
from collections import defaultdict
from typing import Any, NamedTuple

from absl import flags
from ml_collections import config_flags

from looped_jax import cli, topology
from looped_jax.config import resolve
from looped_jax.training.step import lower_step

COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
ARRAY = re.compile(r"\b(f32|bf16|s32|u32|pred)\[([\d,]*)\]")
BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1}


class Program(NamedTuple):
    """Of one compiled step."""

    compile_seconds: float
    lines: int
    code_mib: float
    arguments_gib: float
    temporary_gib: float
    collective_mib: dict[str, float]


def program(config: Any, devices: str) -> Program:
    run = resolve(config)
    lowered = lower_step(run, topology.mesh_of(devices, run.mesh))
    start = time.process_time()
    compiled = lowered.compile()
    seconds = time.process_time() - start
    memory, text = compiled.memory_analysis(), compiled.as_text()
    return Program(
        seconds,
        len(text.splitlines()),
        memory.generated_code_size_in_bytes / 2**20,
        memory.argument_size_in_bytes / 2**30,
        memory.temp_size_in_bytes / 2**30,
        collectives(text),
    )


def collectives(text: str) -> dict[str, float]:
    """MiB of the results of each kind; of an asynchronous one its largest part, the result."""
    found: dict[str, float] = defaultdict(float)
    for result, kind, start in COLLECTIVE.findall(text):
        parts = [size_of(*array) for array in ARRAY.findall(result)]
        found[kind] += (max(parts) if start else sum(parts)) / 2**20
    return dict(found)


def size_of(dtype: str, dimensions: str) -> int:
    size = BYTES[dtype]
    for n in filter(None, dimensions.split(",")):
        size *= int(n)
    return size


def tell(name: str, made: Program) -> None:
    sums = ", ".join(f"{kind} {mib:,.0f}" for kind, mib in sorted(made.collective_mib.items()))
    print(
        f"{name}: compiled in {made.compile_seconds:.0f} s, {made.lines:,} lines of HLO, program "
        f"{made.code_mib:.0f} MiB, arguments {made.arguments_gib:.2f} GiB, temporary "
        f"{made.temporary_gib:.2f} GiB; MiB of {sums}",
        flush=True,
    )


def main(_: list[str]) -> None:
    given = flags.FLAGS
    one = program(given.config, given.topology)
    tell(f"{given.config.name} on {given.config.mesh}", one)
    if given["against"].value is not None:
        other = program(given.against, given.topology)
        tell(f"{given.against.name} on {given.against.mesh}", other)
        print(
            f"ratio of compile times {one.compile_seconds / other.compile_seconds:.2f}, of lines "
            f"{one.lines / other.lines:.2f}, of programs {one.code_mib / other.code_mib:.2f}"
        )


if __name__ == "__main__":
    config_flags.DEFINE_config_file("config", None, "The config whose step is compiled.")
    config_flags.DEFINE_config_file("against", None, "Another one, for the ratios.")
    flags.DEFINE_string("topology", "v5e:2x4", "Chips: as `looped_jax.train --topology` takes it.")
    cli.run(main)
