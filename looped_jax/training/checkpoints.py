"""Checkpoints: saved in the background, verified at every restore, on any mesh.

The only module that imports orbax. A checkpoint is an orbax composite of four items, which plain
orbax reads too:

    params   the parameters          arrays   shape and dtype of every array, by key (JSON)
    rest     all else of the state   extra    what the caller adds: data position, clock (JSON)

orbax restores flipped bits, other dtypes and half-copied folders without a word, so the digests of
`checkpoint_files` are checked first, then shapes and dtypes against `arrays`.

In a run of several processes all of them make every call; process 0 decides and the others follow.
"""

import contextlib
import json
import logging
import re
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, get_args

import jax
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from looped_jax import processes
from looped_jax.errors import UserError
from looped_jax.training import checkpoint_files as files
from looped_jax.training import checkpoint_trees as trees

Resume = Literal["may", "must", "no"]

_log = logging.getLogger(__name__)
_SLOW_WAIT_S = 1.0


class _WithoutTraceback(logging.Filter):
    """Lets orbax report a failed save in a line; the traceback is chained to our own error."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "/orbax/checkpoint/" in record.pathname:
            record.exc_info = None
        return True


logging.getLogger("absl").addFilter(_WithoutTraceback())


class SaveFailed(RuntimeError):
    """A checkpoint could not be written; the ones before it are untouched."""


class _Save(NamedTuple):
    """A save at work: of a step, first orbax's part of it and then our own."""

    step: int
    written: Future[None]
    completed: Future[None]


@dataclass(frozen=True)
class Restored:
    """What a checkpoint held.

    Attributes:
      step: the step after which it was saved.
      state: the state (or the parameters) with the structure and shardings that were asked for.
      extra: what was given to `Checkpoints.save` beside the state.
    """

    step: int
    state: Any
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, for the process (or processes) that train it."""

    def __init__(self, folder: Path, keep: int, milestones: Collection[int] = ()):
        """
        Args:
          folder: an own folder for the checkpoints; made at the first save.
          keep: how many complete checkpoints stay, the newest ones. The oldest goes only after
            the next one is complete, so one more fits on the disk for a while.
          milestones: steps whose checkpoints stay beside them.
        """
        if keep < 1:
            raise UserError(f"keep={keep} checkpoints: allowed are whole numbers from 1")
        self.folder = Path(folder).absolute()
        if re.search(r"\[.*\]", str(self.folder)):
            # Orbax saves there, but takes the brackets for a pattern when it reads.
            raise UserError(f"checkpoints in {self.folder}: allowed is a path without '[…]'")
        self._keep, self._milestones = keep, frozenset(milestones)
        self._orbax = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._at_work: _Save | None = None
        self._attempts = 0

    def save(self, step: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Starts to save; returns once the state is on the host, so it may be donated straight on.

        At most one save is at work, and one copy of the state on the host: if the save before is
        not yet complete, this one waits for it, with a warning if that takes long.

        Args:
          step: number of optimiser steps done; later than all steps saved so far.
          state: tree of arrays with an entry `params` at the top (dict, dataclass or named tuple).
          extra: JSON values to find again beside it.

        Raises:
          SaveFailed: this save, or the one before, could not be written.
        """
        start = time.monotonic()
        self.wait()
        waited = time.monotonic() - start
        if waited > _SLOW_WAIT_S:
            _log.warning(
                "step %d waited %.1f s for the checkpoint before it: save less often", step, waited
            )
        newest = self.latest_step()
        if newest is not None and step <= newest:
            raise ValueError(f"step {step} is not after the newest checkpoint, step {newest}")
        named, arrays = trees.split(state)
        extra = json.loads(json.dumps(extra, allow_nan=False))
        items = {name: ocp.args.StandardSave(tree) for name, tree in named.items()}
        items |= {"arrays": ocp.args.JsonSave(arrays), "extra": ocp.args.JsonSave(extra)}
        try:
            if jax.process_index() == 0:
                self.folder.mkdir(parents=True, exist_ok=True)
                if self._attempts == 0:
                    files.discard_unfinished(self.folder)
            # Each save has a path of its own: orbax's threads outlive a save that failed.
            self._attempts += 1
            path = files.unfinished_path(self.folder, step, self._attempts)
            self._orbax.save(path, args=ocp.args.Composite(**items))
        except Exception as error:
            raise self._failed(step, error) from error
        written = self._finisher.submit(self._orbax.wait_until_finished)
        completed = self._finisher.submit(self._complete, step, path, written)
        self._at_work = _Save(step, written, completed)

    def wait(self) -> None:
        """Returns when the last save is complete. Raises SaveFailed if it could not be written."""
        if self._at_work is None:
            return
        save = self._at_work

        def finish(part: Future[None]) -> None:
            try:
                part.result()
            except Exception as error:
                save.completed.exception()  # over at once, where the other part failed
                raise self._failed(save.step, error) from error
            finally:
                if save.completed.done():  # not after a Ctrl-C
                    self._at_work = None

        # Alone: where this process cannot write, the others wait for its files and hear no word.
        finish(save.written)
        if jax.process_index() > 0:
            finish(save.completed)
        processes.on_process_0(lambda: finish(save.completed), (UserError, SaveFailed))

    def latest_step(self) -> int | None:
        """As `newest_step` of the run's folder."""
        return newest_step(self.folder)

    def restore(self, abstract_state: Any, resume: Resume) -> Restored | None:
        """The newest checkpoint that is as it was written, or None for a start from step 0.

        A damaged checkpoint is reported, set aside as STEP.broken, and the one before it taken.

        Args:
          abstract_state: shapes, dtypes and shardings to restore to (arrays will do). Mesh and
            number of devices and processes need not be those of the save.
          resume: "may" restores if there is a checkpoint; "must" refuses to start without one;
            "no" refuses to start where there is one.

        Raises:
          UserError: refused by `resume`; all checkpoints are damaged; or the checkpoint does not
            fit `abstract_state` (the keys are named).
        """
        if resume not in get_args(Resume):
            raise UserError(f"resume={resume!r}: allowed are {', '.join(get_args(Resume))}")
        self.wait()
        step = self._choose(resume)
        return None if step is None else _load(self.folder, step, abstract_state)

    def close(self) -> None:
        """Waits for the last save and ends the background threads."""
        try:
            self.wait()
        finally:
            self._finisher.shutdown()
            self._orbax.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and jax.process_count() > 1:
            # The error may be this process's alone: whoever waits for the others' word would wait
            # for ever. The save at work goes on to its end nevertheless.
            self._at_work = None
        self.close()

    def _complete(self, step: int, path: Path, written: Future[None]) -> None:
        """In the background: makes a step complete that orbax has written on all processes."""
        written.result()
        part, parts = jax.process_index(), jax.process_count()
        if part > 0:
            files.describe_part(path, part, parts)
            return
        files.complete(path, step, parts)
        files.remove_old(self.folder, self._keep, self._milestones)

    def _failed(self, step: int, error: Exception) -> SaveFailed:
        if jax.process_index() == 0:
            with contextlib.suppress(
                OSError
            ):  # the space is needed, for the run's status if not more
                files.discard_unfinished(self.folder)
        newest = self.latest_step()
        kept = "there is none before it" if newest is None else f"step {newest} is untouched"
        reason = " ".join(str(error).split())
        return SaveFailed(f"cannot save the checkpoint of step {step} ({kept}): {reason}")

    def _choose(self, resume: Resume) -> int | None:
        """The step to restore; all processes look at their part of the files."""

        def begin() -> list[int]:
            steps = files.complete_steps(self.folder)
            broken = files.broken_steps(self.folder)
            if resume == "no" and (steps or broken):
                newest = max(steps or broken)
                raise UserError(
                    f"{self.folder} holds checkpoints (newest: step {newest}) and resume is 'no': "
                    "resume, or choose another folder"
                )
            files.discard_unfinished(self.folder)
            return broken

        broken = processes.on_process_0(begin)
        step, damaged = _newest_good(self.folder, None)

        def set_aside() -> None:
            for broken_step in damaged:
                files.set_aside(self.folder, broken_step)

        if step is not None:
            processes.on_process_0(set_aside)
        elif damaged or broken:
            raise _all_damaged(self.folder, damaged | dict.fromkeys(broken, "set aside earlier"))
        elif resume == "must":
            raise UserError(f"{self.folder} holds no checkpoint and resume is 'must'")
        return step


def newest_step(folder: Path) -> int | None:
    """Step of the newest complete checkpoint in a folder (its content is not verified), or None."""
    return max(files.complete_steps(Path(folder)), default=None)


def restore_params(folder: Path, abstract_params: Any, step: int | None = None) -> Restored:
    """The parameters alone, read-only: nothing in the folder is touched, a run may be at work.

    Args:
      folder: the folder of checkpoints.
      abstract_params: shapes, dtypes and shardings to restore to, on any mesh.
      step: which checkpoint; None for the newest that is as it was written.

    Raises:
      UserError: there is no such checkpoint, it is damaged, or it does not fit `abstract_params`.
    """
    folder = Path(folder).absolute()
    items = ("params", "arrays", "extra")

    if step is None:
        chosen, damaged = _newest_good(folder, items)
        if chosen is None and damaged:
            raise _all_damaged(folder, damaged)
        if chosen is None:
            raise UserError(f"{folder} holds no checkpoint")
    else:
        chosen = step
        _refuse_damaged(folder, step, items)
    restored = _load(folder, chosen, {"params": abstract_params})
    return Restored(restored.step, restored.state["params"], restored.extra)


def _refuse_damaged(folder: Path, step: int, items: tuple[str, ...]) -> None:
    """Raises UserError if there is no checkpoint of a step, or it is damaged."""
    steps = processes.on_process_0(lambda: files.complete_steps(folder))
    if step not in steps:
        have = ", ".join(map(str, steps)) or "none"
        raise UserError(f"{folder} holds no checkpoint of step {step}: there are {have}")
    if reason := _damage(folder, step, items):
        others = ", ".join(str(each) for each in steps if each != step) or "none"
        raise UserError(
            f"checkpoint {folder / str(step)} is damaged: {reason}; other steps there: {others}"
        )


def _damage(folder: Path, step: int, items: tuple[str, ...] | None) -> str:
    """As `checkpoint_files.damage`; every process reads its part, and all hear of any damage."""
    part, parts = jax.process_index(), jax.process_count()
    return processes.first_word(files.damage(folder, step, items, part=part, parts=parts) or "")


def _newest_good(folder: Path, items: tuple[str, ...] | None) -> tuple[int | None, dict[int, str]]:
    """The newest undamaged step, if any, and the damage of all newer ones. Warns of each."""
    damaged: dict[int, str] = {}

    def left() -> list[int]:
        return [step for step in files.complete_steps(folder) if step not in damaged]

    # Listed anew each time: a run at work may complete and remove checkpoints meanwhile.
    while steps := processes.on_process_0(left):
        reason = _damage(folder, steps[-1], items)
        if not reason:
            return steps[-1], damaged
        if processes.is_first():
            _log.warning(
                "checkpoint %s is damaged: %s; falling back to the one before",
                folder / str(steps[-1]),
                reason,
            )
        damaged[steps[-1]] = reason
    return None, damaged


def _all_damaged(folder: Path, damaged: Mapping[int, str]) -> UserError:
    reasons = "; ".join(f"step {step}: {damaged[step]}" for step in sorted(damaged, reverse=True))
    return UserError(
        f"every checkpoint in {folder} is damaged ({reasons}): "
        "bring one back from a copy, or remove the folder to start from step 0"
    )


def _load(folder: Path, step: int, abstract_state: Any) -> Restored:
    """Restores what `abstract_state` asks for from a verified checkpoint."""
    path = folder / str(step)
    wanted_trees, wanted_arrays = trees.split(abstract_state)
    targets = jax.tree.map(_target, wanted_trees)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as orbax:
        described = orbax.restore(
            path,
            args=ocp.args.Composite(arrays=ocp.args.JsonRestore(), extra=ocp.args.JsonRestore()),
        )
        trees.refuse_misfit(path, described.arrays, wanted_arrays)
        restored = orbax.restore(
            path,
            args=ocp.args.Composite(
                **{name: ocp.args.StandardRestore(target) for name, target in targets.items()}
            ),
        )
    placed = {name: restored[name] for name in targets}
    trees.refuse_not_finite(path, placed["params"])
    return Restored(step, trees.join(placed, abstract_state), described.extra)


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        if jax.process_count() > 1:
            raise ValueError("with several processes every array to restore needs a sharding")
        sharding = SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
