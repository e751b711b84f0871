"""Files that one process at a time holds.

The lock is an flock. The kernel drops it when its holder ends, however it ends, so a lock left by a
kill, a reboot or a reused pid never stands in the way.

Network file systems: NFS (Linux, v4 or v3 with lockd) and Lustre mounted with `flock` hold the lock
across hosts; Lustre with `localflock` and some FUSE mounts (gcsfuse) hold it within one host only,
and a second process on another host is not noticed. Where flock is not supported at all, a warning
says so and the holder goes on unprotected.
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from looped_jax.errors import UserError

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)


class Held(Exception):
    """Another process holds the lock; the message is what it wrote about itself."""


@contextlib.contextmanager
def locked(path: Path, owner: str) -> Iterator[None]:
    """Holds the lock file `path` inside the block; `owner` tells others who does.

    Raises:
      Held: another process holds it.
      UserError: the file cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    pid = os.getpid()
    _held.add(descriptor)
    try:
        _acquire(descriptor, path)
        os.pwrite(descriptor, owner.encode(), 0)
        os.ftruncate(descriptor, len(owner.encode()))
        yield
    finally:
        if os.getpid() == pid:  # a forked child has closed its copy already
            _held.discard(descriptor)
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file now; False where there are no locks."""
    if not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
    return False


def _acquire(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
        raise Held(text or "another process") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        _log.warning(
            "the file system of %s has no file locks (%s): a second process would not be noticed",
            path.parent,
            error.strerror,
        )


# A forked child (a data worker, say) inherits the descriptor of the lock, and would hold the
# lock on after its parent's death.
_held: set[int] = set()


def _close_inherited_locks() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)
