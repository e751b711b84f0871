"""What a checkpoint costs: how long training stands still, and what two processes read.

    python -m tests.benchmarks.checkpoints [--mib=256]

First, in one process: the time that `save` blocks as a ratio to a plain copy of the same state in
memory, and the times of a complete save and a verified restore as rates.

Then two real processes save and restore a state of this size, split between them (fsdp:2) and held
by both (data:2), and verify a data folder of this size: bytes that each reads through the kernel
(`rchar` of /proc/self/io), as a share of the checkpoint or the folder. A save reads what it wrote,
for its digests; a restore reads for the digests, then for the parameters.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from rich.console import Console

from looped_jax import cli
from looped_jax.data import shards
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import ShardWriter, TokenData
from looped_jax.files import read_json
from looped_jax.interruption import StopRequest
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from looped_jax.training.checkpoints import Checkpoints
from looped_jax.training.start.data import verify_once

REPEATS = 5
ARRAYS = 16
SHARDS = 8
LAYOUTS = {"fsdp:2": PartitionSpec("devices"), "data:2": PartitionSpec()}


def one_process(mib: int) -> None:
    keys = jax.random.split(jax.random.key(0), ARRAYS)
    params = {f"layer_{i}": jax.random.normal(key, shape_of(mib)) for i, key in enumerate(keys)}
    state = jax.block_until_ready({"params": params})
    copy_s, blocked_s, complete_s = [], [], []
    with tempfile.TemporaryDirectory() as folder, Checkpoints(Path(folder), keep=1) as checkpoints:
        for step in range(1, REPEATS + 2):
            start = time.perf_counter()
            copies = [np.array(x) for x in jax.tree.leaves(state)]
            copy_s.append(time.perf_counter() - start)
            del copies
            start = time.perf_counter()
            checkpoints.save(step, state, {})
            blocked_s.append(time.perf_counter() - start)
            checkpoints.wait()
            complete_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        checkpoints.restore(state, "must")
        restore_s = time.perf_counter() - start
    copy, blocked, complete = (np.median(times[1:]) for times in (copy_s, blocked_s, complete_s))
    print(f"state of {mib} MiB, medians of {REPEATS} saves")
    print(f"copy in memory      {copy * 1e3:7.0f} ms")
    print(f"save blocks         {blocked * 1e3:7.0f} ms   {blocked / copy:.2f} × the copy")
    print(f"save complete after {complete * 1e3:7.0f} ms   {mib / complete:.0f} MiB/s with digests")
    print(f"restore             {restore_s * 1e3:7.0f} ms   {mib / restore_s:.0f} MiB/s, verified")


def shape_of(mib: int) -> tuple[int, int]:
    """Of each of ARRAYS float32 arrays that make up so many MiB."""
    return mib * 2**20 // 4 // ARRAYS // 1024, 1024


def two_processes(mib: int) -> None:
    """Starts both, and prints what each read."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(Path(folder) / "tokens", mib)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        command = [sys.executable, "-m", "tests.benchmarks.checkpoints", f"--mib={mib}"]
        started = [
            subprocess.Popen(
                [*command, f"--address={address}", f"--rank={rank}", f"--folder={folder}"],
                env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            )
            for rank in (0, 1)
        ]
        statuses = [process.wait() for process in started]
        if any(statuses):
            raise SystemExit("a process failed")
        both = [read_json(Path(folder) / f"read-{rank}.json") for rank in (0, 1)]
    print(f"two processes, {mib} MiB    MiB read by process 0 and 1    share of all bytes there")
    for name, of_first in both[0].items():
        read = [of_first["read"], both[1][name]["read"]]
        shares = " ".join(f"{each / of_first['size']:8.2f}" for each in read)
        print(f"{name:<26}" + "".join(f"{each / 2**20:14.1f}" for each in read) + f"    {shares}")


def write_tokens(folder: Path, mib: int) -> None:
    """A folder of prepared data whose training text is random tokens, in SHARDS shards."""
    prepare("hops", folder, say=str)  # whose training text and targets by loop are left out
    manifest = shards.read_manifest(folder)
    tokens = np.random.default_rng(0).integers(0, 2**8, mib * 2**20 // 2, np.uint16)
    shards.SHARD_TOKENS = len(tokens) // SHARDS
    writer = ShardWriter(folder, "train", 1, "uint16")
    writer.add(tokens)
    kept = {name: manifest["streams"][name] for name in shards.STREAMS[1:]}
    manifest["streams"] = {"train": writer.finish(), **kept}
    manifest["splits"]["train"]["tokens"] = len(tokens)
    manifest["loop_targets"] = 0
    shards.write_manifest(folder, {k: v for k, v in manifest.items() if k != "digest"})


def process(mib: int, address: str, rank: int, folder: Path) -> None:
    """What each of the two does; writes what it read."""
    jax.distributed.initialize(address, 2, rank)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))
    found: dict[str, dict[str, int]] = {}
    for layout, split in LAYOUTS.items():
        sharding = NamedSharding(mesh, split)
        make = jax.jit(
            lambda: {f"layer_{i}": jax.random.normal(jax.random.key(i), shape_of(mib))
                     for i in range(ARRAYS)},
            out_shardings=sharding,
        )  # fmt: skip
        state = jax.block_until_ready({"params": make()})
        with Checkpoints(folder / layout, keep=1) as checkpoints:

            def save(checkpoints: Checkpoints = checkpoints, state: Any = state) -> None:
                checkpoints.save(1, state, {})
                checkpoints.wait()

            saved = bytes_read(save)
            restored = bytes_read(lambda c=checkpoints, s=state: c.restore(s, "must"))
        size = sum(path.stat().st_size for path in (folder / layout).rglob("*") if path.is_file())
        found[f"{layout}, save"] = {"read": saved, "size": size}
        found[f"{layout}, restore"] = {"read": restored, "size": size}
    data, run = TokenData.open(folder / "tokens"), RunFolder(folder / "run")
    run.path.mkdir(exist_ok=True)
    with StopRequest() as stop:
        display = Display(Console(quiet=True))
        for name in ("data.verify", "data.verify again"):
            read = bytes_read(lambda: verify_once(data, run, display, stop))
            found[name] = {"read": read, "size": data.size}
    (folder / f"read-{rank}.json").write_text(json.dumps(found))


def bytes_read(call: Callable[[], object]) -> int:
    """Bytes that this process, all its threads, reads while it makes a call."""
    before = _read_so_far()
    call()
    return _read_so_far() - before


def _read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def main(_: list[str]) -> None:
    given = flags.FLAGS
    if given.rank is not None:
        process(given.mib, given.address, given.rank, Path(given.folder))
        return
    two_processes(given.mib)
    one_process(given.mib)


if __name__ == "__main__":
    flags.DEFINE_integer("mib", 256, "Size of the state, and of the data.")
    flags.DEFINE_integer("rank", None, "Of one of the two processes; they are given it.")
    flags.DEFINE_string("address", None, "Where the two meet.")
    flags.DEFINE_string("folder", None, "Where the two write.")
    cli.run(main)
