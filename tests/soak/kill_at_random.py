"""Kills a small run at random again and again, and compares what comes out with a run left alone.

    python -m tests.soak.kill_at_random --kills=200 --out=/tmp/soak

The command that trains is started, killed (SIGKILL) after a random time and started again, until
it has ended; then another run begins, until all kills are used up. Every run has to end with the
losses and the summary of the undisturbed run, bit for bit. Writes OUT/soak.log; exit status 1 if
any run differs or fails by itself.
"""

import argparse
import collections
import json
import lzma
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from looped_jax.data.prepare import prepare
from looped_jax.data.sources import source as sources
from looped_jax.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
STEPS = 400
CONFIG = """
from tests.tiny_runs import tiny_config

def get_config():
    c = tiny_config({data!r}, steps={steps})
    c.checkpoint.every_steps = 20  # a save is at work most of the time
    c.evaluation.every_steps = 50
    return c
"""


class Soak:
    """The runs of one soak test, in one folder."""

    def __init__(self, out: Path, seed: int):
        out.mkdir(parents=True)
        self.out = out
        self._random = random.Random(seed)
        self._log = open(out / "soak.log", "w")  # noqa: SIM115
        self._config = out / "config.py"
        data = self._prepare()
        self._config.write_text(CONFIG.format(data=str(data), steps=STEPS))
        self.phases: collections.Counter[str] = collections.Counter()

    def say(self, line: str) -> None:
        text = f"{time.strftime('%H:%M:%S')} {line}"
        print(text, flush=True)
        print(text, file=self._log, flush=True)

    def undisturbed(self) -> tuple[float, Any]:
        """(Seconds that a run takes when programs are compiled already, its numbers)."""
        for name in ("first", "undisturbed"):
            start = time.monotonic()
            status = self._start(self.out / name).wait()
            if status:
                raise SystemExit(f"the undisturbed run ended with status {status}")
        return time.monotonic() - start, numbers(self.out / "undisturbed")

    def run(self, folder: Path, seconds: float, kills_left: int) -> int:
        """Runs until the end, killed at most `kills_left` times. Returns how often it was."""
        kills = 0
        while True:
            process = self._start(folder)
            try:
                limit = self._random.uniform(0, seconds) if kills < kills_left else None
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                phase = self._phase(folder)
                self.phases[phase] += 1
                self.say(f"{folder.name}: kill {kills} after {limit:.1f} s, {phase}")
                continue
            if status:
                raise SystemExit(f"{folder.name} failed by itself with status {status}")
            return kills

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        with open(self.out / f"{folder.name}.output", "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "looped_jax.train", f"--config={self._config}",
                 f"--workdir={folder}"],
                env=os.environ | {
                    "JAX_NUM_CPU_DEVICES": "1", "JAX_PLATFORMS": "cpu",
                    "JAX_COMPILATION_CACHE_DIR": str(self.out / "compiled"),
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
                },
                cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _phase(self, folder: Path) -> str:
        """Where the kill hit, as far as the folder tells."""
        if RunFolder(folder).status() is None:
            return "before it began"
        if list((folder / "checkpoints").glob("*.unfinished*")):
            return "during a save"
        return "elsewhere"

    def _prepare(self) -> Path:
        with lzma.open(sources.CORPUS / sources.BUNDLED_VALIDATION, "rt", encoding="utf-8") as file:
            novel = file.read()
        books = self.out / "books"
        books.mkdir()
        for name, start in (("a", 0), ("b", 40_000), ("c", 100_000)):
            (books / f"{name}.txt").write_text(novel[start : start + 30_000], "utf-8")
        data = self.out / "data"
        prepare(str(books), data, validation=str(books / "c.txt"), vocab_size=300, say=str)
        return data


def numbers(folder: Path) -> Any:
    """All that a run leaves and that does not depend on the clock."""
    untimed = lambda values: {
        name: value
        for name, value in values.items()
        if name not in ("seconds", "tokens_per_second")
    }
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [untimed(json.loads(line)) for line in lines], untimed(RunFolder(folder).read_summary())


def main() -> int:
    parser = argparse.ArgumentParser(prog="kill_at_random")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    args = parser.parse_args()
    soak = Soak(args.out, args.seed)
    seconds, expected = soak.undisturbed()
    loss = expected[1]["loss"]
    soak.say(f"undisturbed: {seconds:.1f} s, loss {loss!r}")
    kills, runs, same = 0, 0, 0
    while kills < args.kills:
        folder = args.out / f"run-{runs:03}"
        kills += soak.run(folder, seconds, args.kills - kills)
        runs += 1
        same += (equal := numbers(folder) == expected)
        soak.say(
            f"{folder.name}: loss {RunFolder(folder).read_summary()['loss']!r}, "
            f"{'the same' if equal else 'DIFFERENT'}; {kills} of {args.kills} kills"
        )
    hit = ", ".join(f"{count} {phase}" for phase, count in soak.phases.most_common())
    soak.say(f"{kills} kills ({hit}); {same} of {runs} runs end with the undisturbed run's numbers")
    return 0 if same == runs else 1


if __name__ == "__main__":
    sys.exit(main())
