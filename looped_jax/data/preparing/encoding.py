"""The units of a preparation on several processes, each with one core."""

import concurrent.futures
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from looped_jax.data.preparing.progress import Progress
from looped_jax.data.preparing.units import Unit, encode_unit
from looped_jax.data.sources.source import Source
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError

POLL_SECONDS = 0.5


class _Work(NamedTuple):
    """What a process needs for every unit, and where it counts what it has read."""

    source: Source
    tokenizer: str
    end_of_text: str
    name: str
    spells_everything: bool
    folder: Path
    counts: Any  # a shared array: input, characters


_work: _Work | None = None


def encode_units(
    units: Sequence[Unit],
    source: Source,
    encoder: Tokenizer,
    folder: Path,
    processes: int,
    say: Callable[[str], None],
) -> None:
    """Encodes units and writes their entries.

    With one process the tokenizer itself uses all cores; several take a unit each.

    Raises:
      UserError: what a unit raises, or a process that was killed. Units that are done stay.
    """
    if not units:
        return
    progress = Progress("tokens", sum(i.size for unit in units for i in unit.inputs), say)
    if min(processes, len(units)) == 1:
        for unit in units:
            encode_unit(unit, source, encoder, folder, progress.add)
    else:
        _on_processes(units, source, encoder, folder, min(processes, len(units)), progress)
    progress.finish()


def _on_processes(
    units: Sequence[Unit],
    source: Source,
    encoder: Tokenizer,
    folder: Path,
    processes: int,
    progress: Progress,
) -> None:
    context = multiprocessing.get_context("spawn")
    counts = context.Array("q", 2)
    work = _Work(
        source, encoder.to_json(), encoder.end_of_text, encoder.name, encoder.spells_everything,
        folder, counts,
    )  # fmt: skip
    told = [0, 0]

    def tell() -> None:
        now = [counts[0], counts[1]]
        progress.add(now[0] - told[0], now[1] - told[1])
        told[:] = now

    with concurrent.futures.ProcessPoolExecutor(processes, context, _begin, (work,)) as pool:
        # The largest first: none is left to one process alone at the end.
        ordered = sorted(units, key=lambda unit: -sum(i.size for i in unit.inputs))
        waiting = {pool.submit(_encode, unit) for unit in ordered}
        try:
            while waiting:
                done, waiting = concurrent.futures.wait(waiting, POLL_SECONDS, "FIRST_COMPLETED")
                for each in done:
                    each.result()
                tell()
        except BrokenProcessPool:
            raise UserError(
                "a process of the preparation was killed (for memory?); the same command goes on"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(work: _Work) -> None:
    global _work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _work = work
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """A process whose parent was killed would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


def _encode(unit: Unit) -> None:
    assert _work is not None
    encoder = Tokenizer.from_json(_work.tokenizer, _work.end_of_text, _work.name)
    encoder.spells_everything = _work.spells_everything

    def meter(consumed: int, characters: int) -> None:
        assert _work is not None
        with _work.counts.get_lock():
            _work.counts[0] += consumed
            _work.counts[1] += characters

    encode_unit(unit, _work.source, encoder, _work.folder, meter)
