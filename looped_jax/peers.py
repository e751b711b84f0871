"""Several processes hear of each other's failure at once, and end with one word of why.

A collective that waits for a process that has failed waits for ever, and jax's own watch ends the
others by an abort with a stack trace. So every process holds a connection to process 0:

- an error of one goes through it to all; process 0 says it once, tells whoever looks after the
  run's status, and all end with exit status 1;
- a process that dies closes its connection without a word, which is heard just the same. If it is
  process 0, process 1 speaks in its place.

    processes.connect(count, seconds)
    with peers.watch():
        with peers.on_failure(write_status), peers.telling(agreed=(UserError,)):
            …
"""

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax

from looped_jax import processes
from looped_jax.errors import UserError

FAILED_STATUS = 1
# A machine that dies says nothing: its connection is given up after so long without an answer.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# An error may be the echo of a peer's death, of which the connection tells within this time.
ECHO_SECONDS = 1.0
# How long process 0 waits until all have heard, and they for its word.
FAREWELL_SECONDS = 5.0
CONNECT_SECONDS = 10.0

_group: "_First | _Other | None" = None
_listeners: list[Callable[[str], None]] = []


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Within the block every process of several ends when one fails; one process alone just runs.

    Raises:
      UserError: a process cannot reach process 0.
    """
    global _group
    if jax.process_count() == 1:
        yield
        return
    _group = _meet()
    with _slow_aborts():
        try:
            yield
        finally:
            _group.leave()
            _group = None


@contextlib.contextmanager
def on_failure(listener: Callable[[str], None]) -> Iterator[None]:
    """Within the block `listener` gets the reason of a failure, on the process that speaks for all.

    It runs in a thread of its own, whatever the main thread waits for.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def telling(
    *, agreed: tuple[type[BaseException], ...], without_traceback: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """An error in the block reaches all processes, and ends them; with one process it just passes.

    Args:
      agreed: errors that all processes raise alike, and which pass.
      without_traceback: errors whose message says all.
    """
    try:
        yield
    except BaseException as error:
        if _group is None or isinstance(error, agreed):
            raise
        time.sleep(ECHO_SECONDS)
        if not isinstance(error, without_traceback):
            traceback.print_exception(error)
        _group.report(" ".join(f"{type(error).__name__}: {error}".split()))


def end(reason: str) -> NoReturn:
    """Ends the run's processes at once, from any thread, as after a failure of this one."""
    if _group is not None:
        _group.report(reason)
    _speak(reason)
    _end()


class _First:
    """Process 0: hears the others, and speaks for all."""

    def __init__(self, server: socket.socket, token: str, count: int):
        self._lock = threading.Lock()
        self._failed = self._left = False
        self._others: dict[int, _Line] = {}
        server.settimeout(CONNECT_SECONDS)
        while len(self._others) < count - 1:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, count)) - set(self._others))
                raise UserError(f"processes {missing} have not reached process 0") from None
            line = _Line(connection)
            hello = line.read() or {}
            if hello.get("token") == token:
                line.send({"token": token})
                self._others[hello["rank"]] = line
            else:
                line.close()
        server.close()
        for rank, line in self._others.items():
            threading.Thread(target=self._listen, args=(rank, line), daemon=True).start()

    def _listen(self, rank: int, line: "_Line") -> None:
        message = line.read()
        if message is None:
            self._fail(rank, "it ended without a word: it was killed, or its machine died")
        elif "failed" in message:
            self._fail(rank, message["failed"])

    def report(self, reason: str) -> NoReturn:
        self._fail(0, reason)
        while True:  # another thread is at it
            time.sleep(FAREWELL_SECONDS)

    def _fail(self, rank: int, reason: str) -> None:
        with self._lock:
            if self._failed or self._left:
                return
            self._failed = True
        _speak(f"process {rank}: {reason}")
        for line in self._others.values():
            line.send({"failed": reason})
        deadline = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < deadline and any(line.is_open() for line in self._others.values()):
            time.sleep(0.02)
        _end()

    def leave(self) -> None:
        with self._lock:
            self._left = True
        for line in self._others.values():
            line.send({"bye": 0})


class _Other:
    """Any other process: hears process 0."""

    def __init__(self, line: "_Line", rank: int):
        self._line, self._rank, self._left = line, rank, False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        message = self._line.read()
        if self._left or (message is not None and "failed" not in message):
            return
        if message is None and self._rank == 1:
            _speak("process 0: it ended without a word: it was killed, or its machine died")
        _end()

    def report(self, reason: str) -> NoReturn:
        self._line.send({"failed": reason})
        time.sleep(FAREWELL_SECONDS)  # process 0 answers, which ends this process
        _end()

    def leave(self) -> None:
        self._left = True
        self._line.send({"bye": self._rank})


class _Line:
    """JSON messages over a connection; one that is broken swallows them."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection = connection
        self._file = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> dict[str, Any] | None:
        """The next message; None when the other side is gone."""
        try:
            text = self._file.readline()
            message = json.loads(text)
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self._file.close()
        self._connection.close()

    def is_open(self) -> bool:
        """Whether the other side still holds the connection."""
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


def _meet() -> _First | _Other:
    """Connects all processes with process 0. All make this call."""
    server = socket.create_server(("", 0)) if processes.is_first() else None

    def where() -> dict[str, Any]:
        assert server is not None
        coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0]
        hosts = [host for host in (coordinator, socket.gethostname(), socket.getfqdn()) if host]
        return {"hosts": hosts, "port": server.getsockname()[1], "token": secrets.token_hex(16)}

    place = processes.on_process_0(where)
    if server is not None:
        return _First(server, place["token"], jax.process_count())
    rank = jax.process_index()
    for host in place["hosts"]:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, place["port"]), CONNECT_SECONDS)
            line = _Line(connection)
            line.send({"token": place["token"], "rank": rank})
            if (line.read() or {}).get("token") == place["token"]:
                return _Other(line, rank)
    raise UserError(
        f"process {rank} cannot reach process 0 at {' or '.join(place['hosts'])}, port "
        f"{place['port']}: TCP between the hosts of a run has to be allowed"
    )


def _speak(reason: str) -> None:
    """Says why all end, and tells those who want to know."""
    for listener in _listeners:
        with contextlib.suppress(Exception):  # the word below has to come, whatever happens here
            listener(reason)
    print(f"failed: {reason}", file=sys.stderr, flush=True)


def _end() -> NoReturn:
    """Ends this process at once: what waits for its peers would never return."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(FAILED_STATUS)


@contextlib.contextmanager
def _slow_aborts() -> Iterator[None]:
    """An abort of native code takes its time, in which the peers' connection tells why.

    jax aborts a process within milliseconds of losing process 0. The handler is C's sleep, called
    with the number of the signal, 6: after so many seconds the abort goes on.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    before = libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGABRT, before)
