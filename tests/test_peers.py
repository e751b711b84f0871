"""How processes hear of each other's failure, over real connections within one process."""

import contextlib
import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from looped_jax import peers
from looped_jax.peers import _First, _Line, _Other

SECONDS = 20


@pytest.fixture
def ended(monkeypatch):
    """Gets an entry for every process that ends."""
    ends: queue.Queue[str] = queue.Queue()

    def end():
        ends.put("ended")

    monkeypatch.setattr(peers, "_end", end)
    monkeypatch.setattr(peers, "FAREWELL_SECONDS", 0.1)
    return ends


@pytest.fixture
def reasons():
    """What those who look after the status are told."""
    told: queue.Queue[str] = queue.Queue()
    with peers.on_failure(told.put):
        yield told


@pytest.fixture
def pair(ended):
    """(process 0, process 1), connected; their threads end before `_end` is the real one again."""
    before = set(threading.enumerate())
    with socket.create_server(("localhost", 0)) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(_First, server, "secret", 2)
        stranger = _Line(socket.create_connection(server.getsockname()))
        stranger.send({"token": "guessed", "rank": 1})
        line = _Line(socket.create_connection(server.getsockname()))
        line.send({"token": "secret", "rank": 1})
        assert line.read() == {"token": "secret"}
        group = first.result(SECONDS), _Other(line, 1)
    yield group
    for each in (stranger, line, group[0]._others[1]):
        with contextlib.suppress(OSError):
            each._connection.shutdown(socket.SHUT_RDWR)
        each.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_an_error_of_another_process_is_said_by_process_0(pair, ended, reasons, capsys):
    pair[1].report("ValueError: bad")
    assert reasons.get(timeout=SECONDS) == "process 1: ValueError: bad"
    assert [ended.get(timeout=SECONDS) for _ in pair] == ["ended", "ended"]
    assert capsys.readouterr().err == "failed: process 1: ValueError: bad\n"
    assert reasons.empty()


def test_an_error_of_process_0_reaches_the_other(pair, ended, reasons, capsys):
    pair[0]._fail(0, "OSError: disk full")
    assert [ended.get(timeout=SECONDS) for _ in pair] == ["ended", "ended"]
    assert reasons.get(timeout=SECONDS) == "process 0: OSError: disk full"
    assert capsys.readouterr().err == "failed: process 0: OSError: disk full\n"


@pytest.mark.parametrize("dead", [0, 1])
def test_a_death_without_a_word_is_told_by_the_one_that_is_left(pair, ended, reasons, dead):
    pair[dead]._left = True  # the dead hear nothing
    lines = pair[0]._others[1], pair[1]._line
    lines[dead]._connection.shutdown(socket.SHUT_RDWR)
    reason = f"process {dead}: it ended without a word: it was killed, or its machine died"
    assert reasons.get(timeout=SECONDS) == reason
    assert ended.get(timeout=SECONDS) == "ended"
    assert reasons.empty()


def test_a_goodbye_is_no_failure(pair, ended, reasons):
    first, other = pair
    other.leave()
    first.leave()
    other._line._connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(queue.Empty):
        ended.get(timeout=0.3)
    assert reasons.empty()


def test_one_process_alone_keeps_its_errors():
    with pytest.raises(ZeroDivisionError), peers.watch(), peers.telling(agreed=()):
        raise ZeroDivisionError
