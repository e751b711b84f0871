"""One start at a time. Standard library only: shell scripts use this before .venv exists.

    exec 9<>"$file" && python3 launch/lock.py 9 "the quickstart"

locks the file for as long as the shell (or what it becomes by exec) keeps descriptor 9 open. The
kernel drops the lock when its holder ends, however it ends. Exit status 2 and one line that names
the holder's pid if there is another; with `--wait` it waits for its end.
"""

import argparse
import errno
import fcntl
import os
import sys

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(Exception):
    """Somebody else holds the lock. `pid` is who, or None if the file does not tell."""

    def __init__(self, pid: int | None):
        super().__init__(f"pid {pid or 'unknown'}")
        self.pid = pid


def acquire(descriptor: int, pid: int, wait: bool = False) -> None:
    """Locks an open file and writes the holder's pid into it. Raises Busy unless it may wait."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        raise Busy(int(text) if text.isdigit() else None) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        print("warning: no file locks here: a second start is not noticed", file=sys.stderr)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{pid}\n".encode(), 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="lock.py")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("what", help="what holds the lock, for the message")
    parser.add_argument("--wait", action="store_true")
    args = parser.parse_args()
    holder = os.getppid()  # the shell
    try:
        acquire(args.descriptor, holder)
    except Busy as busy:
        # The child of a shell that was killed, such as pip, keeps the lock until it ends.
        if not args.wait and (busy.pid is None or _is_alive(busy.pid)):
            print(f"error: {args.what} is already running: {busy}", file=sys.stderr)
            return 2
        print(f"waiting for {args.what} ({busy}) to end", file=sys.stderr, flush=True)
        acquire(args.descriptor, holder, wait=True)
    return 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(main())
