"""A run from config to summary, in one ordered function; typed again it goes on where it was."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from looped_jax import parallel, processes
from looped_jax.config import MAY_CHANGE, RunConfig, resolve, to_json
from looped_jax.cpu_devices import mesh_of_run
from looped_jax.data.pipeline import count_train_windows, train_batches
from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError
from looped_jax.interruption import Interrupted, StopRequest
from looped_jax.model.accounting import count_parameters
from looped_jax.progress import Display, Progress
from looped_jax.run_folder import RunFolder, State
from looped_jax.training import state as states
from looped_jax.training.checkpoints import Checkpoints, Resume
from looped_jax.training.optimizer import Schedule
from looped_jax.training.reporting import (
    Clock,
    DeferredMetrics,
    Diverged,
    MetricsWriter,
    NoMetrics,
    last_line_with,
)
from looped_jax.training.step import train_step
from looped_jax.training.validation import ValidationLoss, validation_loss_of_run

# Bytes of data from which on reading them takes more than some seconds.
LONG_TO_READ = 2e9

_log = logging.getLogger(__name__)


def train(config: ConfigDict, workdir: Path, resume: Resume, display: Display) -> dict[str, Any]:
    """Trains the run that `config` describes in `workdir`, or goes on with it.

    Args:
      config: a tree as configs/base.py describes.
      workdir: the run folder; made if need be.
      resume: "may" goes on from a checkpoint if there is one, "must" refuses to start without,
        "no" refuses to start where there is one.
      display: where progress is shown.

    Returns:
      The summary. A run that is finished is not run again.

    Raises:
      UserError: unusable config, data or folder.
      Diverged: the loss or the gradient is no longer finite; the last good checkpoint stays.
      Interrupted: SIGINT or SIGTERM; all that was done is saved.
    """
    run = resolve(config)
    processes.check(run.processes.count)
    folder = RunFolder(workdir)
    with StopRequest() as stop, _held(folder, config) as (digest, summary):
        if summary is not None:
            return summary
        try:
            _set_status(folder, "running", reason="starting")
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
    return summary


@contextlib.contextmanager
def _held(folder: RunFolder, config: ConfigDict) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Process 0 holds the run folder; all hear the config's digest, and the result if there is one.

    Raises:
      UserError: another process holds the folder, or another run stands there.
    """
    with ExitStack() as stack:

        def hold() -> tuple[str, dict[str, Any] | None]:
            stack.enter_context(folder.lock())
            digest = folder.write_config(to_json(config), may_change=MAY_CHANGE)
            return digest, folder.read_summary() if folder.is_finished() else None

        digest, summary = processes.on_process_0(hold)
        yield digest, summary


def _set_status(folder: RunFolder, state: State, **what: Any) -> None:
    if processes.is_first():
        folder.set_status(state, **what)


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
        processes.everywhere(lambda: verify_data(data, display))
    processes.same_everywhere("the digest of the data", data.digest)
    started_on = processes.on_process_0(folder.started_on)
    mesh = mesh_of_run(run, started_on)
    parallel.check_batch(mesh, "data", run.data.batch_size, run.data.microbatches)
    parallel.check_batch(mesh, "evaluation", run.evaluation.batch_size)
    optimizer = states.make_optimizer(run.optimizer.rule)
    schedule, _ = states.make_schedule(run)
    with ExitStack() as stack:
        stack.enter_context(parallel.active(mesh))
        checkpoints = stack.enter_context(Checkpoints(folder.checkpoints_path, run.checkpoint.keep))
        stop.check(None)
        restored = checkpoints.restore(states.abstract_state(run.model, optimizer, mesh), resume)
        if restored is None:
            state = states.init_state(run.model, optimizer, mesh, run.seed)
            start, clock, unvalidated = 0, Clock(), False
            started_on = mesh.size
        else:
            _check_same_data(restored.extra["data_digest"], data, folder)
            state, start = restored.state, restored.step
            clock = Clock.from_state_dict(restored.extra["clock"])
            unvalidated = restored.extra["unvalidated"]
            display.say(f"{run.name} goes on after step {start:,}")
            if started_on is not None and started_on != mesh.size:
                display.say(
                    f"it was started on {started_on} devices and goes on on {mesh.size}: sums in "
                    "another order, so not bit for bit as without the stop"
                )
        doing = f"goes on after step {start:,}, compiling" if start else "compiling"
        _set_status(folder, "running", step=start, reason=doing, devices=started_on)
        stop.check(start)
        loop = _Loop(run, data, mesh, schedule, checkpoints, clock, folder, stop)
        state = loop.run(state, start, unvalidated, display)
        with clock.paused():
            final = loop.validate(state.params, run.steps)
    last = processes.on_process_0(lambda: last_line_with(folder.metrics_path, "loss"))
    return summarise(run, digest, data, final, last, clock.seconds)


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

    def run(
        self, state: states.TrainState, start: int, unvalidated: bool, display: Display
    ) -> states.TrainState:
        """Runs the steps after `start`; what is saved after a step can be gone on from exactly.

        `unvalidated` says that a stop at `start` kept that step's validation from being done.
        """
        run, total = self.run_config, self.run_config.steps
        step_fn, seed = train_step(run, self.mesh), np.uint32(run.seed)
        with ExitStack() as stack:
            writer: MetricsWriter | NoMetrics = NoMetrics()
            if processes.is_first():
                writer = MetricsWriter(self.folder.path, start)
            stack.callback(writer.close)
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
                state, values = step_fn(state, batch, self.schedule, seed)
                progress.say("")
                if step % run.log.every_steps == 0 or step == total:
                    metrics.push(step, values)
                unvalidated = _due(step, run.evaluation.every_steps) and step < total
                interrupted = self._asked_to_stop(step)
                if unvalidated and interrupted is None:
                    metrics.flush()
                    interrupted = self._validate_between(step, state.params, writer)
                    unvalidated = interrupted is not None
                if _due(step, run.checkpoint.every_steps) or step == total or interrupted:
                    # Never save what is not finite: look at this step's numbers first.
                    metrics.push(step, values)
                    metrics.flush()
                    writer.flush()
                    self._save(step, state, unvalidated)
                if interrupted:
                    self.checkpoints.wait()
                    raise interrupted
            self.checkpoints.wait()
        return state

    def validate(self, params: Any, step: int) -> ValidationLoss:
        """Loss on the held-out text at the config's depth. Raises Interrupted, between batches."""
        return validation_loss_of_run(
            self.run_config, params, self.data, self.mesh, lambda: self.stop.check(step)
        )

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
        written = 0

        def sink(step: int, values: dict[str, Any]) -> None:
            nonlocal written
            if step == written:  # pushed by the log and again by the checkpoint
                return
            written = step
            seconds = self.clock.seconds
            progress.update(step, values["loss"])
            rates = {"tokens": step * run.batch_tokens, "seconds": seconds}
            if progress.rate is not None:
                rates["tokens_per_second"] = progress.rate
            writer.write(step, values | rates)

        return sink

    def _save(self, step: int, state: states.TrainState, unvalidated: bool) -> None:
        extra = {
            "clock": self.clock.state_dict(),
            "data_digest": self.data.digest,
            "unvalidated": unvalidated,
        }
        self.checkpoints.save(step, state, extra)
        _set_status(self.folder, "running", step=step)


def open_data(run: RunConfig) -> TokenData:
    """The run's data, checked against its model.

    Raises:
      UserError: no data there, more token ids than the model has, less than one window, or no
        targets by loop where they are supervised.
    """
    data = TokenData.open(run.data.folder)
    if data.vocab_size > run.model.vocab_size:
        raise UserError(
            f"model.vocab_size = {run.model.vocab_size}; allowed with the tokenizer of "
            f"{run.data.folder}: at least {data.vocab_size}"
        )
    if run.loss.supervision == "by_loop" and data.loop_targets != run.model.recurrences:
        raise UserError(
            f"{run.data.folder} has targets for {data.loop_targets} loops; allowed with "
            f"loss.supervision 'by_loop': model.recurrences = {run.model.recurrences} of them"
        )
    count_train_windows(data, run.data.sequence_length)
    return data


def verify_data(data: TokenData, display: Display) -> None:
    """Raises UserError for a file that is not what was prepared; progress if it takes long."""
    if data.size < LONG_TO_READ:
        data.verify()
        return
    with display.track(f"verifying {data.folder}", data.size, unit="bytes") as progress:
        data.verify(lambda size: progress.update(progress.done + size))


def summarise(
    run: RunConfig,
    digest: str,
    data: TokenData,
    final: ValidationLoss,
    last_metrics: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """summary.json: what analysis reads. FLOPs and N are the analytic counts of accounting.py."""
    n = count_parameters(run.model)
    tokens = run.steps * run.batch_tokens
    train_flops = run.flops_per_token * tokens
    return {
        "run": run.name,
        "study": run.study,
        "budget": run.budget.flops or train_flops,
        "r": run.model.recurrences,
        "d_model": run.model.width,
        "n_once": n.n_once,
        "n_rec": n.n_rec,
        "n_inject": n.n_inject,
        "n_total": n.total,
        "tokens": tokens,
        "steps": run.steps,
        "flops_per_token": run.flops_per_token,
        "train_flops": train_flops,
        "loss": final.loss,
        "loss_standard_error": final.standard_error,
        "bits_per_byte": final.bits_per_byte,
        "validation_tokens": final.tokens,
        "train_loss": last_metrics["loss"],
        "seed": run.seed,
        "injection": run.model.injection,
        "backprop_recurrences": run.model.backprop_recurrences,
        "sequence_length": run.data.sequence_length,
        "batch_tokens": run.batch_tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "config_digest": digest,
        "data_digest": data.digest,
    }


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _validation_metrics(result: ValidationLoss) -> dict[str, float]:
    return {
        "validation_loss": result.loss,
        "validation_standard_error": result.standard_error,
        "validation_bits_per_byte": result.bits_per_byte,
    }


def _check_same_data(digest: str, data: TokenData, folder: RunFolder) -> None:
    if digest != data.digest:
        raise UserError(
            f"data in {data.folder} has digest {data.digest[:12]}; allowed for {folder.path}: "
            f"{digest[:12]}, the data it was started on"
        )
