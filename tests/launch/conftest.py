"""A tiny study on tiny data, and sweeps of it as a user starts them."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from looped_jax.data.prepare import prepare
from tests.launch.sweeps import ROOT, TIMEOUT_S, TINY

SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Prepared data: words in random order."""
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(200)]
    for split in ("train", "validation"):
        (folder / f"{split}.txt").write_text(" ".join(rng.choices(words, k=8000)))
    prepare(
        str(folder / "train.txt"),
        folder / "tokens",
        validation=str(folder / "validation.txt"),
        vocab_size=300,
        say=lambda line: None,
    )
    return folder / "tokens"


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """One device, and one compilation of each shape for all sweeps of the tests."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    return environment | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@pytest.fixture(scope="session")
def slurm():
    """The slurm.conf of a Slurm to submit to: the one of .ci/run, or one started here."""
    if given := os.environ.get("TEST_SLURM_CONF"):
        yield given
        return
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    if missing := [name for name in SLURM_PROGRAMS if shutil.which(name, path=path) is None]:
        pytest.skip(
            f"SLURM IS NOT INSTALLED ({', '.join(missing)} missing): nothing is submitted; "
            "tests/slurm/slurm.sh install"
        )
    folder = tempfile.mkdtemp(prefix="slurm.", dir="/tmp")  # a short path, for sockets
    script = ROOT / "tests" / "slurm" / "slurm.sh"
    subprocess.run([script, "start", folder], check=True)
    yield f"{folder}/slurm.conf"
    subprocess.run([script, "stop", folder], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def start(data, environment):
    """Starts `python -m launch.sweep`; what a test leaves running is killed."""
    started = []

    def start(out: Path, study: Path = TINY, *arguments: str, **more: str) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "launch.sweep", f"--study={study}", f"--out={out}",
            f"--data={data}", *arguments,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment | more, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def sweep(start):
    """Runs a sweep to its end: (exit status, output, errors)."""

    def sweep(*arguments, **more: str) -> tuple[int, str, str]:
        process = start(*arguments, **more)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, output, errors

    return sweep
