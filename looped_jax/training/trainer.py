"""A run from config to summary, in one ordered function; typed again it goes on where it was."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from looped_jax import parallel, peers, processes
from looped_jax.config import MAY_CHANGE, RunConfig, resolve, to_json
from looped_jax.cpu_devices import mesh_of_run
from looped_jax.data.pipeline import train_batches
from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError
from looped_jax.files import write_json
from looped_jax.interruption import Interrupted, StopRequest
from looped_jax.progress import Display, Progress
from looped_jax.run_folder import RunFolder, State
from looped_jax.training import state as states
from looped_jax.training.checkpoints import Checkpoints, Restored, Resume, SaveFailed, newest_step
from looped_jax.training.optimizer import Schedule
from looped_jax.training.record import provenance
from looped_jax.training.record.summary import summarise
from looped_jax.training.record.trace import Trace
from looped_jax.training.record.utilisation import device_memory, utilisation
from looped_jax.training.reporting import (
    Clock,
    DeferredMetrics,
    Diverged,
    MetricsWriter,
    NoMetrics,
    last_line_with,
)
from looped_jax.training.save_times import SaveTimes
from looped_jax.training.start.attention import attention_of
from looped_jax.training.start.data import (
    check_same_data,
    describe_epochs,
    epochs,
    keep_with_run,
    open_data,
    verify_once,
)
from looped_jax.training.start.parameters import begin_with
from looped_jax.training.step import train_step
from looped_jax.training.validation import ValidationLoss, validation_loss_of_run
from looped_jax.training.watchdog import Watchdog

# What became of the parameters of the run that this one began with: see `start.parameters`.
INIT_FROM = "init_from.json"


def train(config: ConfigDict, workdir: Path, resume: Resume, display: Display) -> dict[str, Any]:
    """Trains the run that `config` describes in `workdir`, or goes on with it.

    Args:
      config: a tree as configs/base.py describes.
      workdir: the run folder; made if need be.
      resume: "may" goes on from a checkpoint if there is one, "must" refuses to start without,
        "no" refuses to start where there is one, or a finished run.
      display: where progress is shown.

    Returns:
      The summary. A run that is finished is not run again.

    Raises:
      UserError: unusable config, data or folder.
      Diverged: the loss or the gradient is no longer finite; the last good checkpoint stays.
      Interrupted: a signal asked to stop; all that was done is saved.
    """
    run = resolve(config)
    processes.check(run.processes.count)
    folder = RunFolder(workdir)
    with StopRequest() as stop, _held(folder, config, resume) as (digest, summary):
        if summary is not None:
            return summary
        try:
            _set_status(folder, "running", reason="starting")
            with (
                peers.on_failure(lambda reason: _write_status(folder, "failed", reason=reason)),
                peers.telling(agreed=(UserError, Interrupted, Diverged)),
            ):
                summary = _train(run, digest, folder, resume, display, stop)
        except Diverged as error:
            _set_status(folder, "diverged", step=error.last_step, reason=str(error))
            raise
        except Interrupted as error:
            _set_status(folder, "interrupted", step=error.step, reason=str(error))
            raise
        except KeyboardInterrupt:
            _set_status(folder, "interrupted", reason="a second Ctrl-C, which stopped it at once")
            raise
        except BaseException as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            _set_status(folder, "failed", reason=reason)
            raise
        if processes.is_first():
            folder.write_summary(summary)
            provenance.note_end(folder, "finished")
    return summary


@contextlib.contextmanager
def _held(
    folder: RunFolder, config: ConfigDict, resume: Resume
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Process 0 holds the run folder; all hear the config's digest, and the result if there is one.

    Raises:
      UserError: another process holds the folder, another run stands there, or it is finished and
        `resume` is "no".
    """
    with ExitStack() as stack:

        def hold() -> tuple[str, dict[str, Any] | None]:
            stack.enter_context(folder.lock())
            digest = folder.write_config(to_json(config), may_change=MAY_CHANGE)
            return digest, _result(folder, resume)

        digest, summary = processes.on_process_0(hold)
        yield digest, summary


def _result(folder: RunFolder, resume: Resume) -> dict[str, Any] | None:
    """The result of a finished run; its status is mended if it died before saying so."""
    if not folder.is_finished():
        return None
    if resume == "no":
        raise UserError(
            f"{folder.path} holds a finished run and resume is 'no': choose another folder"
        )
    summary = folder.read_summary()
    status = folder.readable_status()
    if status is None or status.state != "finished":
        folder.set_status("finished")
        provenance.note_end(folder, "finished")
    return summary


def _set_status(folder: RunFolder, state: State, **what: Any) -> None:
    if processes.is_first():
        _write_status(folder, state, **what)


def _write_status(folder: RunFolder, state: State, **what: Any) -> None:
    folder.set_status(state, saved=newest_step(folder.checkpoints_path), **what)
    if state != "running":
        provenance.note_end(folder, state)


def _train(
    run: RunConfig,
    digest: str,
    folder: RunFolder,
    resume: Resume,
    display: Display,
    stop: StopRequest,
) -> dict[str, Any]:
    data = processes.everywhere(lambda: open_data(run))
    if run.data.verify:
        verify_once(data, folder, display, stop)
    processes.same_everywhere("the digest of the data", data.digest)
    if epochs(run, data) > 1:
        display.say(describe_epochs(run, data))
    started_on = processes.on_process_0(folder.started_on)
    mesh = mesh_of_run(run, started_on)
    parallel.check_batch(mesh, "data", run.data.batch_size, run.data.microbatches)
    _, attention = attention_of(run, mesh)
    if run.model.attention != "xla":
        display.say(attention)
    optimizer = states.make_optimizer(run.optimizer.rule)
    schedule, _ = states.make_schedule(run)
    with ExitStack() as stack:
        stack.enter_context(parallel.active(mesh))
        checkpoints = stack.enter_context(
            Checkpoints(folder.checkpoints_path, run.checkpoint.keep, run.checkpoint.milestones)
        )
        stop.check(None)
        restored = checkpoints.restore(states.abstract_state(run.model, optimizer, mesh), resume)
        if restored is None:
            processes.on_process_0(lambda: _refuse_lost_steps(folder))
            state = _first_state(run, data, optimizer, mesh, folder, display)
            begin = _Begin(0, Clock(), unvalidated=False, metrics_lines=0)
            started_on = mesh.size
        else:
            check_same_data(restored.extra["data_digest"], data, folder)
            state, begin = restored.state, _Begin.at(restored)
            display.say(f"{run.name} goes on after step {begin.step:,}")
            if started_on is not None and started_on != mesh.size:
                display.say(
                    f"it was started on {started_on} devices and goes on on {mesh.size}: sums in "
                    "another order, so not bit for bit as without the stop"
                )
        if processes.is_first():
            doing = f"goes on after step {begin.step:,}, compiling" if begin.step else "compiling"
            folder.set_status(
                "running", step=begin.step, saved=begin.step, reason=doing, devices=started_on
            )
            keep_with_run(data, folder)
            provenance.note_start(folder, provenance.circumstances(mesh), begin.step)
        stop.check(begin.step)
        watchdog = stack.enter_context(Watchdog(run.processes.stall_minutes, peers.end))
        loop = _Loop(run, data, mesh, schedule, checkpoints, begin.clock, folder, stop, watchdog)
        # Told before the checkpoints are closed, which may wait for the other processes.
        with peers.telling(
            agreed=(Interrupted, Diverged), without_traceback=(OSError, SaveFailed, UserError)
        ):
            state = loop.run(state, begin, display)
            with begin.clock.paused():
                final = loop.validate(state.params, run.steps)
                if processes.is_first():
                    final.write_windows(folder.path)
    last = processes.on_process_0(lambda: last_line_with(folder.metrics_path, "loss"))
    return summarise(run, digest, data, final, last, begin.clock.seconds)


@dataclasses.dataclass(frozen=True)
class _Begin:
    """Where a run is taken up.

    Attributes:
      step: optimiser steps done.
      clock: seconds spent on them.
      unvalidated: a stop kept the validation that is due after `step` from being done.
      metrics_lines: that metrics.jsonl had when `step` was saved.
    """

    step: int
    clock: Clock
    unvalidated: bool
    metrics_lines: int

    @classmethod
    def at(cls, restored: Restored) -> "_Begin":
        extra = restored.extra
        clock = Clock.from_state_dict(extra["clock"])
        return cls(restored.step, clock, extra["unvalidated"], extra["metrics_lines"])


def _first_state(
    run: RunConfig,
    data: TokenData,
    optimizer: Any,
    mesh: Mesh,
    folder: RunFolder,
    display: Display,
) -> states.TrainState:
    """The state of step 0: drawn from the seed, or begun with another run's parameters."""
    if not run.init_from:
        return states.init_state(run.model, optimizer, mesh, run.seed)
    state, taken = begin_with(run, data, optimizer, mesh)
    display.say(f"{run.name} {taken}")
    if processes.is_first():
        write_json(folder.path / INIT_FROM, taken.to_json())
    return state


def _refuse_lost_steps(folder: RunFolder) -> None:
    """Raises UserError if a checkpoint was complete once, and there is none now."""
    status = folder.readable_status()
    if status is not None and status.saved:
        raise UserError(
            f"{folder.status_path} tells of a checkpoint of step {status.saved}, and "
            f"{folder.checkpoints_path} holds none: bring it back from a copy, or remove the run "
            "folder to start from step 0"
        )


@dataclasses.dataclass
class _Loop:
    """The steps of a run between two moments, with all that they touch."""

    run_config: RunConfig
    data: TokenData
    mesh: Mesh
    schedule: Schedule
    checkpoints: Checkpoints
    clock: Clock
    folder: RunFolder
    stop: StopRequest
    watchdog: Watchdog

    def run(self, state: states.TrainState, begin: _Begin, display: Display) -> states.TrainState:
        """Runs the steps that are left; what is saved after a step can be gone on from exactly."""
        run, total, start = self.run_config, self.run_config.steps, begin.step
        step_fn, seed = train_step(run, self.mesh), np.uint32(run.seed)
        unvalidated, times = begin.unvalidated, SaveTimes(run.checkpoint)
        with ExitStack() as stack:
            writer: MetricsWriter | NoMetrics = NoMetrics()
            if processes.is_first():
                writer = MetricsWriter(self.folder.path, start, begin.metrics_lines)
            stack.callback(writer.close)
            trace = Trace(self.folder.path, run.profile.steps)
            stack.callback(trace.close)
            progress = stack.enter_context(
                display.track(run.name, total, unit="steps", start=start, rate_unit="tokens",
                              rate_scale=run.batch_tokens)
            )  # fmt: skip
            if unvalidated:
                writer.write(start, _validation_metrics(self.validate(state.params, start)))
            batches = self._batches(start)
            stack.callback(batches.close)  # type: ignore[attr-defined]
            metrics = DeferredMetrics(
                self._sink(writer, progress), start, watched=("loss", "gradient_norm")
            )
            progress.say("compiling")
            for step in range(start + 1, total + 1):
                batch = parallel.global_batch(next(batches), self.mesh)
                trace.before(step)
                state, values = step_fn(state, batch, self.schedule, seed)
                self.watchdog.advance(step)
                progress.say("")
                trace.after(step, values)
                if _due(step, run.log.every_steps) or step == total:
                    metrics.push(step, values)
                unvalidated = _due(step, run.evaluation.every_steps) and step < total
                interrupted = self._asked_to_stop(step)
                if unvalidated and interrupted is None:
                    metrics.flush()
                    interrupted = self._validate_between(step, state.params, writer)
                    unvalidated = interrupted is not None
                if times.due(step) or step == total or interrupted:
                    metrics.check(step, values)  # never save what is not finite
                    writer.flush()
                    self._save(step, state, unvalidated, writer.lines)
                    times.saved()
                if interrupted:
                    self._wait_for_save()
                    raise interrupted
            self._wait_for_save()
        return state

    def validate(self, params: Any, step: int) -> ValidationLoss:
        """Loss on the held-out text at the config's depth. Raises Interrupted, between batches."""

        def after_batch() -> None:
            self.watchdog.advance(step)
            self.stop.check(step)

        return validation_loss_of_run(self.run_config, params, self.data, self.mesh, after_batch)

    def _asked_to_stop(self, step: int) -> Interrupted | None:
        number = self.stop.poll()
        return Interrupted(step, number) if number else None

    def _validate_between(
        self, step: int, params: Any, writer: MetricsWriter | NoMetrics
    ) -> Interrupted | None:
        """Validates in the middle of training. Returns what stopped it, if anything did."""
        with self.clock.paused():
            try:
                writer.write(step, _validation_metrics(self.validate(params, step)))
            except Interrupted as interrupted:
                return interrupted
        return None

    def _batches(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        run = self.run_config
        return train_batches(
            self.data,
            sequence_length=run.data.sequence_length,
            batch_size=run.data.batch_size,
            seed=run.seed,
            start_step=start,
            rows=parallel.local_rows(self.mesh, run.data.batch_size),
        )

    def _sink(self, writer: MetricsWriter | NoMetrics, progress: Progress) -> Callable[..., None]:
        run = self.run_config
        devices = self.mesh.devices.ravel()
        of_one_step = epochs(run, self.data) / run.steps

        def sink(step: int, values: dict[str, Any]) -> None:
            seconds = self.clock.seconds
            progress.update(step, values["loss"])
            rates = {
                "tokens": step * run.batch_tokens,
                "epoch": step * of_one_step,
                "seconds": seconds,
            }
            if progress.rate is not None:
                flops = run.flops_per_token * progress.rate
                rates["tokens_per_second"] = progress.rate
                rates |= utilisation(flops, devices[0].device_kind, devices.size)
            writer.write(step, values | rates | device_memory())

        return sink

    def _save(
        self, step: int, state: states.TrainState, unvalidated: bool, metrics_lines: int
    ) -> None:
        extra = {
            "clock": self.clock.state_dict(),
            "data_digest": self.data.digest,
            "unvalidated": unvalidated,
            "metrics_lines": metrics_lines,
        }
        self.checkpoints.save(step, state, extra)
        _set_status(self.folder, "running", step=step)

    def _wait_for_save(self) -> None:
        """Returns when the last save is complete, and status.json says so."""
        self.checkpoints.wait()
        _set_status(self.folder, "running")


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _validation_metrics(result: ValidationLoss) -> dict[str, float]:
    return {
        "validation_loss": result.loss,
        "validation_standard_error": result.standard_error,
        "validation_bits_per_byte": result.bits_per_byte,
    }
