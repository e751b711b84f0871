"""What a checkpoint costs: how long training stands still, and how long the disk works.

    python tests/benchmarks/checkpoints.py [MiB]

Prints the time that `save` blocks as a ratio to a plain copy of the same state in memory, and the
times for a complete save and a verified restore as rates.
"""

import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from looped_jax.training.checkpoints import Checkpoints

REPEATS = 5


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    n = 16
    shape = (mib * 2**20 // 4 // n // 1024, 1024)
    keys = jax.random.split(jax.random.key(0), n)
    params = {f"layer_{i}": jax.random.normal(key, shape) for i, key in enumerate(keys)}
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


if __name__ == "__main__":
    main()
