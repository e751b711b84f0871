"""A process that trains one run after another; `launch.local` starts it and tells it which.

It says READY, reads orders from standard input, one JSON line each:
{"folder": …, "config": …, "new_shape": …}, and answers each with a line: {"state": …, "reason": …}.
Compiled programs stay between runs of one shape, which therefore compile once. What a run prints
goes to output.log in its folder.

SIGTERM, and the end of standard input (the parent has died, however it did), let the run at hand
save a checkpoint and end the process.
"""

import contextlib
import json
import os
import queue
import signal
import threading

import jax

from launch.execute import LOCK_SECONDS, execute, interrupt
from launch.local import READY
from looped_jax.interruption import Interrupted
from looped_jax.run_folder import RunFolder, State

# A worker whose parent has died has so long to save a checkpoint; whoever comes next waits longer.
LAST_SECONDS = LOCK_SECONDS - 10.0


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but answers goes through that pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to pass on
    signal.signal(signal.SIGTERM, interrupt)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    # When the parent has died there is nobody left to be told.
    with contextlib.suppress(Interrupted, BrokenPipeError):
        os.write(answers, READY)
        state: State | None = None
        while state != "interrupted":
            order = json.loads(orders.get())
            if order["new_shape"]:
                # Each shape maps some 600 pieces of memory, of the 65,530 that Linux allows.
                jax.clear_caches()
            state, reason = execute(RunFolder(order["folder"]), order["config"])
            os.write(answers, json.dumps({"state": state, "reason": reason}).encode() + b"\n")


def _listen(orders: "queue.SimpleQueue[bytes]") -> None:
    # Unbuffered: the interpreter cannot end while a thread waits in a buffered read.
    for line in open(0, "rb", buffering=0, closefd=False):  # noqa: SIM115
        orders.put(line)
    deadline = threading.Timer(LAST_SECONDS, os._exit, [1])
    deadline.daemon = True
    deadline.start()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
