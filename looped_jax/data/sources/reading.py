"""A file read once, its digest taken of the very bytes that were read."""

import hashlib
import io
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_STEP = 1 << 20


class Reading:
    """One reading of a file, from which `digest` then comes without another.

    What is passed over on the way (columns of a parquet file that nobody asked for) is read for the
    digest alone.
    """

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDONLY)
        self._sha256, self._digested = hashlib.sha256(), 0

    def stream(self) -> io.BufferedReader:
        """The file from its start; closing the stream leaves the reading open."""
        return io.BufferedReader(_Positioned(self))

    def read_at(self, position: int, buffer: memoryview) -> int:
        """Fills `buffer` from `position` on, as far as the file goes; returns the bytes."""
        self._digest_to(position)
        length = os.preadv(self._descriptor, [buffer], position)
        fresh = self._digested - position  # so many bytes at the start were digested before
        if 0 <= fresh < length:
            self._sha256.update(buffer[fresh:length])
            self._digested = position + length
        return length

    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._descriptor).st_size

    def digest(self) -> str:
        """Hexadecimal SHA-256 of the whole file; what is left of it is read."""
        self._digest_to(self.size())
        return self._sha256.hexdigest()

    def _digest_to(self, position: int) -> None:
        while self._digested < position:
            length = min(_STEP, position - self._digested)
            passed = os.pread(self._descriptor, length, self._digested)
            if not passed:  # behind the end
                return
            self._sha256.update(passed)
            self._digested += len(passed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)


class _Positioned(io.RawIOBase):
    """A reading as one of Python's streams."""

    def __init__(self, reading: Reading):
        self._reading, self._position = reading, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._reading.size()}
        self._position = start[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = self._reading.read_at(self._position, memoryview(buffer).cast("B"))
        self._position += length
        return length
