"""A little real text, and data prepared from it."""

import lzma
from pathlib import Path

import pytest

from looped_jax.data import sources
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData


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
