"""When the process itself crashes, status.json says "failed".

A check that fails inside XLA or a segmentation fault ends the process before any Python code can
run. But `faulthandler` still writes: here into a pipe, whose other end a small process watches.
That one passes on what comes through and, when the pipe ends, writes the status. A kill -9 says
nothing, and the status stays as it was.
"""

import contextlib
import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from looped_jax.errors import UserError
from looped_jax.run_folder import RunFolder


@contextlib.contextmanager
def crashes_told(folder: Path) -> Iterator[None]:
    """Inside the block, a crash of this process becomes the status of the run in `folder`."""
    watcher = subprocess.Popen(
        [sys.executable, "-m", "looped_jax.training.crash", str(folder), str(os.getpid())],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # signals to this process and its group are not for it
    )
    assert watcher.stdin is not None
    faulthandler.enable(watcher.stdin)
    try:
        yield
    finally:
        faulthandler.disable()
        watcher.stdin.close()
        watcher.wait()


def watch(folder: RunFolder, pid: int) -> None:
    """Waits for the end of standard input; what comes through it are the last words of a crash."""
    first = ""
    for line in sys.stdin:
        first = first or line.strip()
        print(line, end="", file=sys.stderr)
    if not first:
        return
    # Whoever holds the folder by now has written a status of its own.
    with contextlib.suppress(UserError), folder.lock():
        status = folder.status()
        if status is not None and (status.state, status.pid) == ("running", pid):
            folder.set_status("failed", reason=f"the process crashed: {first}")


if __name__ == "__main__":
    watch(RunFolder(sys.argv[1]), int(sys.argv[2]))
