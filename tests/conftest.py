"""Strictness for the whole suite, a little real text, and data prepared from it.

Implicit dtype promotion and silent broadcasting are errors.
"""

import importlib.metadata
import lzma
import os
from pathlib import Path

import pytest

# Eight simulated devices, before jax starts a backend; sharding tests need them.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling tiny programs that run once or twice is nearly all of the suite's time. Without LLVM's
# optimisation and fused kernels, which jax 0.11 cannot do without, it is a tenth of that. Processes
# that tests start inherit the flags. `XLA_FLAGS= launch/test.sh` compiles as users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false" * (importlib.metadata.version("jaxlib") < "0.11"),
)

import jax

from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData
from looped_jax.data.sources import source as sources

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# These files take longest. They begin first, so that no process waits for another at the end.
LONGEST = (
    "test_readme.py", "test_notebook.py", "test_slurm.py", "test_failures.py", "test_trainer.py",
    "test_sweep.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(n) if (n := item.path.name) in LONGEST else 99)


@pytest.fixture(autouse=True, scope="module")
def _programs_of_one_file():
    """Each compiled program holds memory mappings, of which Linux allows a process 65,530."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def novel() -> str:
    """A whole bundled novel."""
    return lzma.open(sources.CORPUS / sources.BUNDLED_VALIDATION, "rt", encoding="utf-8").read()


@pytest.fixture(scope="session")
def books(novel, tmp_path_factory) -> Path:
    """A folder with three short books, of which c.txt is meant for validation."""
    folder = tmp_path_factory.mktemp("books")
    for name, start in (("a", 0), ("b", 40_000), ("c", 100_000)):
        (folder / f"{name}.txt").write_text(novel[start : start + 30_000] + " “été”", "utf-8")
    return folder


@pytest.fixture(scope="session")
def data(books, tmp_path_factory) -> TokenData:
    """The books, prepared with 300 tokens."""
    out = tmp_path_factory.mktemp("data") / "books"
    return prepare(str(books), out, validation=str(books / "c.txt"), vocab_size=300, say=str)
