"""A tiny study on tiny data, and sweeps of it as a user starts them."""

import contextlib
import os
import random
import shutil
import subprocess
import tempfile

import pytest

from looped_jax.data.prepare import prepare
from tests.launch.sweeps import ROOT, Sweeps

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
    """Starts a sweep: `Sweeps.start`."""
    with contextlib.closing(Sweeps(data, environment)) as sweeps:
        yield sweeps.start


@pytest.fixture
def sweep(data, environment):
    """Runs a sweep to its end: `Sweeps.run`."""
    with contextlib.closing(Sweeps(data, environment)) as sweeps:
        yield sweeps.run
