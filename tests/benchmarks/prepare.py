"""What preparing text costs: MB for each second of a core, memory, and what a kill -9 loses.

    python -m tests.benchmarks.prepare [--megabytes=64] [--out=FOLDER]

Writes English-like text (words of a Zipf distribution, documents of some 3,000 characters) as JSON
lines into files of 8 MB, and prepares it with 32,000 tokens. Seconds of cores are those that the
kernel counts for all processes, so a machine that does other things changes them little.

On a machine that was busy with other work (seconds of the clock left out), with --megabytes=64:

    a quarter, 1 process      8.4 MB     4.8 s of cores   1.74 MB/core-s    187 MB
    1 process                58.7 MB    19.7 s of cores   2.99 MB/core-s    180 MB
    2 processes              58.7 MB    21.4 s of cores   2.74 MB/core-s    166 MB in the first
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from absl import flags

from looped_jax import cli
from looped_jax.data.shards import TokenData

ROOT = Path(__file__).parents[2]
FILE_BYTES = 8 << 20
DOCUMENT_WORDS = 500
VOCABULARY = 60_000
VOCAB_SIZE = 32_000


def write_text(folder: Path, megabytes: int) -> None:
    """JSON lines, the same for the same size."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    lengths = rng.integers(2, 12, VOCABULARY)
    words = np.array(["".join(rng.choice(letters, n)) for n in lengths])
    shares = 1 / np.arange(1, VOCABULARY + 1)
    shares /= shares.sum()
    folder.mkdir(parents=True)
    for number in range(max(1, megabytes * 1_000_000 // FILE_BYTES)):
        with open(folder / f"{number:04d}.jsonl", "w") as file:
            while file.tell() < FILE_BYTES:
                document = " ".join(rng.choice(words, DOCUMENT_WORDS, p=shares))
                file.write(json.dumps({"text": document}) + "\n")


def command(source: Path, out: Path, processes: int) -> list[str]:
    # Units of one file each: as many as the files of a data set of hundreds of gigabytes have.
    program = (
        "import sys\n"
        "from looped_jax.data.preparing import units\n"
        "from looped_jax.data.prepare import Workers, prepare\n"
        "if __name__ == '__main__':\n"
        "    units.UNIT_BYTES = 1\n"
        "    prepare(sys.argv[1], sys.argv[2], validation='0.01', vocab_size=int(sys.argv[4]),\n"
        "            tokenizer_sample=5_000_000, workers=Workers(int(sys.argv[3])))\n"
    )
    script = out.with_name("prepare_by_file.py")
    script.write_text(program)
    return [sys.executable, str(script), str(source), str(out), str(processes), str(VOCAB_SIZE)]


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """(wall seconds, seconds of cores, MB of the largest process) of a command that succeeds."""
    wall, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(arguments, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if status != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with status {status}")
    cores = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - wall, cores, usage.ru_maxrss / 1024


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def killed_and_continued(source: Path, out: Path) -> int:
    """Units that stayed done when the process was killed in the middle of its work."""
    process = subprocess.Popen(
        command(source, out, 1), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL
    )
    files = len(list(source.iterdir()))
    while len(list(out.glob(".units/*.json"))) < files // 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(out.glob(".units/*.json")))
    measured(command(source, out, 1))
    return done


def main(_: list[str]) -> None:
    given = flags.FLAGS
    with tempfile.TemporaryDirectory(dir=given.out) as temporary:
        folder = Path(temporary)
        for part, megabytes in (("quarter", given.megabytes // 4), ("whole", given.megabytes)):
            write_text(folder / part, megabytes)
        digests = {}
        for name, part, processes in (
            ("a quarter, 1 process", "quarter", 1),
            ("1 process", "whole", 1),
            ("2 processes", "whole", 2),
        ):
            source, out = folder / part, folder / f"{part}-{processes}"
            size = sum(path.stat().st_size for path in source.iterdir()) / 1e6
            wall, cores, memory = measured(command(source, out, processes))
            digests[part, processes] = TokenData.open(out).digest
            print(
                f"{name:<22}{size:7.1f} MB  {wall:6.1f} s  {cores:6.1f} s of cores  "
                f"{size / cores:5.2f} MB/core-s  {memory:5.0f} MB in the first process",
                flush=True,
            )
        done = killed_and_continued(folder / "whole", folder / "killed")
        files = len(list((folder / "whole").iterdir()))
        digests["killed", 1] = TokenData.open(folder / "killed").digest
        same = len({v for k, v in digests.items() if k[0] != "quarter"}) == 1
        print(f"kill -9 after {done} of {files} units, continued: digests equal: {same}")


if __name__ == "__main__":
    flags.DEFINE_integer("megabytes", 64, "Text to prepare.")
    flags.DEFINE_string("out", None, "Where temporary files go. Default: the system's folder.")
    cli.run(main)
