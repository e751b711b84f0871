"""Several processes that train one run together: how they meet, agree and hear of each other's end.

    JAX_COORDINATOR_ADDRESS=host0:1234 JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=0 \\
        python -m looped_jax.train … --config.processes.count=2

Slurm (`srun -n 2`), Open MPI and TPU pods need none of the three variables. All processes make the
same calls of this module in the same order; each call waits for the slowest.
"""

import contextlib
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from looped_jax.errors import UserError

T = TypeVar("T")

# A process that has not been heard of for so long is dead, and the others end.
HEARTBEAT_SECONDS = 20
# How long a process that ends waits for the others to end as well.
SHUTDOWN_SECONDS = 20

# What launchers tell a process about itself: (launcher, rank, count).
_LAUNCHERS = (
    ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


@dataclass(frozen=True)
class Launch:
    """What a launcher says: this is process `rank` of `count`."""

    launcher: str
    rank: int
    count: int


def launched() -> Launch | None:
    """What the environment says about this process; None if no launcher left a word.

    Raises:
      UserError: half of what a launcher sets is missing, or it is not a rank below a count.
    """
    for launcher, rank_name, count_name in _LAUNCHERS:
        rank, count = os.environ.get(rank_name), os.environ.get(count_name)
        if count is None or (rank is None and launcher != "JAX_NUM_PROCESSES"):
            continue
        if rank is None or not (rank.isdigit() and count.isdigit() and int(rank) < int(count)):
            raise UserError(
                f"{rank_name} = {rank} and {count_name} = {count}; allowed: a rank from 0 and a "
                "count above it"
            )
        return Launch(launcher, int(rank), int(count))
    return None


def connect(count: int, timeout_s: int) -> None:
    """Joins the `count` processes of this run; with one there is nothing to join.

    Has to come before anything that makes jax look for devices. Says on standard error which
    process this is, of how many, and where the coordinator (process 0) is, before it waits.

    Args:
      count: `config.processes.count`.
      timeout_s: `config.processes.connect_seconds`.

    They have `timeout_s` to meet; then each ends with a message and exit status 2.

    Raises:
      UserError: another number of processes was launched, or nothing says where the others are.
    """
    launch = launched()
    if launch is not None and launch.count != count:
        raise UserError(
            f"config.processes.count = {count}, and {launch.launcher} started {launch.count} "
            f"process{'es' if launch.count > 1 else ''}: set one to the other"
        )
    if count == 1:
        return
    known: dict[str, Any] = {}
    name = f"a process of {count}"
    if launch is not None:
        known = {"num_processes": launch.count, "process_id": launch.rank}
        name = f"process {launch.rank} of {launch.count}"
    try:
        with _coordinator_said(name), _given_up_after(timeout_s, name):
            jax.distributed.initialize(
                **known,
                initialization_timeout=timeout_s + 60,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            )
    except ValueError as error:
        raise UserError(
            f"config.processes.count = {count}, and nothing says where the others are ({error}): "
            "start it with srun, mpirun or on a TPU pod, or set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error
    check(count)


@contextlib.contextmanager
def _coordinator_said(name: str) -> Iterator[None]:
    """Passes on what jax says when it has found the coordinator, before it waits for it."""
    logger = logging.getLogger("jax._src.distributed")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextlib.contextmanager
def _given_up_after(seconds: float, name: str) -> Iterator[None]:
    """Ends the process with a message; jax's own time limit aborts it with a stack trace."""

    def give_up() -> None:
        print(
            f"error: {name} has not met the others after config.processes.connect_seconds = "
            f"{seconds}: are all of them started, and can they reach the coordinator?",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check(count: int) -> None:
    """Raises UserError unless `config.processes.count` processes are connected."""
    if jax.process_count() != count:
        raise UserError(
            f"config.processes.count = {count}, and {jax.process_count()} are connected: "
            "set one to the other"
        )


def is_first() -> bool:
    """Whether this is process 0, which alone writes a run's files."""
    return jax.process_index() == 0


def on_process_0(decide: Callable[[], T], errors: tuple[type[Exception], ...] = (UserError,)) -> T:
    """Runs `decide` on process 0 and gives its JSON result to all processes.

    An error of one of the classes `errors` (made from its message alone) is raised everywhere too.
    Any other ends process 0, and with it the others.
    """
    if jax.process_count() == 1:
        return decide()
    outcome: dict[str, Any] = {}
    if is_first():
        try:
            outcome["value"] = decide()
        except errors as error:
            outcome = {"error": str(error), "kind": errors.index(type(error))}
    message = np.frombuffer(json.dumps(outcome).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(message.size)))
    message = np.resize(message, length)
    outcome = json.loads(multihost_utils.broadcast_one_to_all(message).tobytes())
    if "error" in outcome:
        raise errors[outcome["kind"]](outcome["error"])
    return outcome["value"]


def everywhere(do: Callable[[], T]) -> T:
    """Runs `do` on every process and returns what it gave here.

    Raises:
      UserError: on all processes, if any of them raised one.
    """
    if jax.process_count() == 1:
        return do()
    result, mine = None, b""
    try:
        result = do()
    except UserError as error:
        mine = str(error).encode()
    for rank, message in enumerate(_gather(mine)):
        if message:
            raise UserError(f"process {rank}: {message.decode()}")
    return result  # type: ignore[return-value]


def same_everywhere(what: str, value: str) -> None:
    """Raises UserError unless all processes have the same `value`, for example a digest."""
    if jax.process_count() == 1:
        return
    values = [each.decode() for each in _gather(value.encode())]
    if other := [rank for rank, each in enumerate(values) if each != values[0]]:
        raise UserError(
            f"{what} is {values[other[0]][:12]} on process {other[0]} and {values[0][:12]} on "
            "process 0; allowed: the same on all"
        )


def is_same_everywhere(value: str) -> bool:
    """Whether all processes have this value."""
    return jax.process_count() == 1 or len(set(_gather(value.encode()))) == 1


def first_word(word: str) -> str:
    """What the first process says that says anything; "" if none does."""
    if jax.process_count() == 1:
        return word
    return next((said.decode() for said in _gather(word.encode()) if said), "")


def largest(number: int) -> jax.Array | int:
    """The largest of the numbers that the processes give, not waited for until it is read."""
    if jax.process_count() == 1:
        return number
    part = np.full(jax.local_device_count(), number, np.int32)
    return _maximum()(jax.make_array_from_process_local_data(_one_each(), part))


class DelayedMaximum:
    """The largest of the processes' numbers without holding up the devices.

    One process hears its own number. Several hear those of the call before, which the devices have
    passed round beside the step in between; the first call then gives 0. All call equally often.
    """

    def __init__(self) -> None:
        self._before: Any = 0

    def __call__(self, number: int) -> int:
        before, self._before = self._before, largest(number)
        return self._before if isinstance(self._before, int) else int(before)


@functools.cache
def _one_each() -> NamedSharding:
    mesh = jax.make_mesh((jax.device_count(),), ("all",), (AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec("all"))


@functools.cache
def _maximum() -> Callable[[jax.Array], jax.Array]:
    whole = NamedSharding(_one_each().mesh, PartitionSpec())
    return jax.jit(lambda numbers: numbers.max(), out_shardings=whole)


def _gather(message: bytes) -> list[bytes]:
    """The messages of all processes, by rank."""
    lengths = multihost_utils.process_allgather(np.int32(len(message)))
    padded = np.zeros(max(1, int(lengths.max())), np.uint8)
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]
