"""Files that one process at a time holds; standard library only, since scripts use it before .venv.

The lock is an flock. The kernel drops it when its holder ends, however it ends, so a lock left by a
kill, a reboot or a reused pid never stands in the way.

Network file systems: NFS (Linux, v4 or v3 with lockd) and Lustre mounted with `flock` hold the lock
across hosts; Lustre with `localflock` and some FUSE mounts (gcsfuse) hold it within one host only,
and a second process on another host is not noticed. Where flock is not supported at all, a warning
says so and the holder goes on unprotected.

    exec 9<>"$file" && PYTHONPATH="$root" python3 -m looped_jax.lock 9 "$file" "the quickstart"

locks the file for as long as the shell (or what it becomes by exec) keeps descriptor 9 open. Exit
status 2 and one line that names the holder's pid if there is another; with `--wait` it waits for
its end. A link in the file's place is refused: what it leads to is not written.
"""

import argparse
import contextlib
import errno
import fcntl
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from looped_jax.errors import UserError

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

# No link is followed, no pipe waited for.
_NO_SURPRISES = os.O_NOFOLLOW | os.O_NONBLOCK

_log = logging.getLogger(__name__)


class Held(Exception):
    """Another process holds the lock; the message is what it wrote about itself."""


@contextlib.contextmanager
def locked(path: Path, owner: str) -> Iterator[None]:
    """Holds the lock file `path` inside the block; `owner` tells others who does.

    Raises:
      Held: another process holds it.
      UserError: the file cannot be written, or is a link or no file.
    """
    descriptor, is_writable = _open(path)
    pid = os.getpid()
    _held.add(descriptor)
    try:
        _acquire(descriptor, str(path.parent), owner if is_writable else None)
        yield
    finally:
        if os.getpid() == pid:  # a forked child has closed its copy already
            _held.discard(descriptor)
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file now; False where there are no locks, or no such file.

    Raises:
      UserError: the file cannot be read, or is a link or no file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_SURPRISES)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refused(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    finally:
        os.close(descriptor)
    return False


def _open(path: Path) -> tuple[int, bool]:
    """The lock file, made if need be, and whether it can be written.

    Whoever may write into the folder may hold the lock, so a new file gets the folder's
    permissions, and one of another user that cannot be written is held all the same.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return _opened(path, os.O_RDWR), True
        with contextlib.suppress(FileExistsError):
            descriptor = _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            with contextlib.suppress(OSError):  # a file system without permissions
                os.fchmod(descriptor, stat.S_IMODE(path.parent.stat().st_mode) & 0o666)
            return descriptor, True
        return _opened(path, os.O_RDWR), True
    except PermissionError as error:
        with contextlib.suppress(OSError):
            return _opened(path, os.O_RDONLY), False
        raise _refused(path, error) from error
    except OSError as error:
        raise _refused(path, error) from error


def _opened(path: Path, flags: int) -> int:
    """Opens a plain file under one name; a link could lead to a file that is not ours to write."""
    descriptor = os.open(path, flags | _NO_SURPRISES, 0o666)
    if not _is_plain(os.fstat(descriptor)):
        os.close(descriptor)
        raise OSError(errno.ELOOP, "")
    return descriptor


def _is_plain(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether the open file is a plain one that has this name and no other."""
    named, found = path.lstat(), os.fstat(descriptor)
    return _is_plain(found) and (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino)


def _link_refused(path: Path) -> str:
    return f"{path} is a link or no plain file; allowed: a lock file, or none"


def _refused(path: Path, error: OSError) -> UserError:
    if error.errno == errno.ELOOP:
        return UserError(_link_refused(path))
    return UserError(f"cannot write {path}: {error.strerror}")


def _acquire(descriptor: int, folder: str, owner: str | None, *, wait: bool = False) -> None:
    """Locks an open file, writes the owner, if any, into it; raises Held unless it may wait."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        text = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
        raise Held(text or "another process") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        _log.warning(
            "the file system of %s has no file locks (%s): a second process would not be noticed",
            folder,
            error.strerror,
        )
    if owner is not None:
        os.pwrite(descriptor, owner.encode(), 0)
        os.ftruncate(descriptor, len(owner.encode()))


# A forked child (a data worker, say) inherits the descriptor of the lock, and would hold the
# lock on after its parent's death.
_held: set[int] = set()


def _close_inherited_locks() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


def main() -> int:
    """Locks a descriptor that the calling shell holds open."""
    parser = argparse.ArgumentParser(prog="python -m looped_jax.lock")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("file", type=Path, help="the name under which the shell opened it")
    parser.add_argument("what", help="what holds the lock, for the message")
    parser.add_argument("--wait", action="store_true", help="wait for the holder to end")
    arguments = parser.parse_args()
    if not _is_named(arguments.descriptor, arguments.file):
        print(f"error: {_link_refused(arguments.file)}", file=sys.stderr)
        return 2
    owner = f"pid {os.getppid()}"  # the shell
    where = f"descriptor {arguments.descriptor}"
    try:
        _acquire(arguments.descriptor, where, owner)
    except Held as held:
        # The child of a shell that was killed, such as pip, keeps the lock until it ends.
        if not arguments.wait and _is_alive(str(held)):
            print(f"error: {arguments.what} is already running: {held}", file=sys.stderr)
            return 2
        print(f"waiting for {arguments.what} ({held}) to end", file=sys.stderr, flush=True)
        _acquire(arguments.descriptor, where, owner, wait=True)
    return 0


def _is_alive(owner: str) -> bool:
    """Whether the process of "pid N" lives; True of an owner that does not tell."""
    word, _, pid = owner.partition(" ")
    if word != "pid" or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(main())
