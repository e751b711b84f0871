"""Strictness for the whole suite, a little real text, and data prepared from it.

Implicit dtype promotion and silent broadcasting are errors.
"""

import atexit
import lzma
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# Eight simulated devices, before jax starts a backend; sharding tests need them.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Many tests start processes that compile the same small programs: each is compiled once a session,
# for all processes of it (xdist's among them, which inherit the variable).
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = tempfile.mkdtemp(prefix="looped_jax_tests_")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

import jax

from looped_jax.data import sources
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


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
