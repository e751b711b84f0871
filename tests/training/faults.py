"""What disks, kills and people do to files, done on purpose."""

import contextlib
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path


def array_file(checkpoint: Path, item: str = "params") -> Path:
    """The largest file of a checkpoint's item: the one that holds the arrays."""
    files = [path for path in (checkpoint / item).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)


def empty_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@contextlib.contextmanager
def no_space(largest_file: int = 4096) -> Iterator[None]:
    """Every file of this process that would grow beyond the size fails to be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
