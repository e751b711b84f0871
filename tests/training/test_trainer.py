import contextlib
import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from looped_jax import cpu_devices
from looped_jax.errors import UserError
from looped_jax.files import read_json, sha256_of_file
from looped_jax.interruption import Interrupted
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from looped_jax.training import step as steps
from looped_jax.training import trainer, validation
from looped_jax.training.record import provenance
from looped_jax.training.reporting import Diverged
from looped_jax.version import VERSION
from tests.tiny_runs import tiny_config

ROOT = Path(__file__).parents[2]

# What depends on the clock and not on the run.
TIMES = {"seconds", "tokens_per_second", "flops_per_second"}


def quiet() -> Display:
    return Display(Console(quiet=True))


def run(config, workdir, resume="may"):
    return trainer.train(config, workdir, resume, quiet())


def without_times(values: dict) -> dict:
    return {key: value for key, value in values.items() if key not in TIMES}


def metrics(workdir) -> list[dict]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [without_times(json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """(run folder, summary) of an undisturbed run."""
    workdir = tmp_path_factory.mktemp("runs") / "straight"
    return workdir, run(tiny_config(data.folder), workdir)


def test_a_run_leaves_what_readers_need(straight, data):
    workdir, summary = straight
    status = RunFolder(workdir).status()
    assert (status.state, status.step, status.devices) == ("finished", 12, 1)
    assert summary == RunFolder(workdir).read_summary()
    assert summary["steps"] == 12
    assert summary["tokens"] == 12 * 128
    assert summary["train_flops"] == summary["flops_per_token"] * summary["tokens"]
    assert summary["loss"] < np.log(300)
    assert 0 < summary["loss_standard_error"] < 0.1
    assert summary["data_digest"] == data.digest
    nats_W, tokens_W = np.load(workdir / "validation_windows.npy").T
    assert tokens_W.sum() == summary["validation_tokens"]
    np.testing.assert_allclose(nats_W.sum() / tokens_W.sum(), summary["loss"], rtol=1e-12)
    assert [line["step"] for line in metrics(workdir)] == list(range(1, 13))
    assert list(workdir.glob("events.out.tfevents.*"))


def test_a_run_folder_says_what_it_was_made_of(straight, data):
    folder = RunFolder(straight[0])
    assert sha256_of_file(folder.tokenizer_path) == data.manifest["tokenizer"]["sha256"]
    assert read_json(folder.data_manifest_path) == data.manifest
    (start,) = provenance.starts(folder)
    assert (start["state"], start["from_step"], start["processes"]) == ("finished", 0, 1)
    assert start["started"] <= start["ended"]
    assert start["devices"] == {"kind": "cpu", "count": 1}
    assert start["mesh"] == "data:1,fsdp:1,tensor:1"
    assert start["versions"]["jax"] == jax.__version__
    assert start["versions"]["looped_jax"] == VERSION
    assert start["command"] == shlex.join(sys.orig_argv)
    assert len(start["git"]["commit"]) == 40
    assert isinstance(start["git"]["dirty"], bool)


def test_metrics_tell_rates_epochs_and_learning_rates(straight, data):
    lines = [json.loads(x) for x in (straight[0] / "metrics.jsonl").read_text().splitlines()]
    config = trainer.resolve(tiny_config(data.folder))
    windows = (len(data.train) - 1) // 16
    assert lines[5]["epoch"] == pytest.approx(6 * 8 / windows)
    schedule = trainer.states.make_schedule(config)[0]
    for group, rate in schedule.rates(5).items():
        assert lines[5][f"learning_rate/{group}"] == pytest.approx(float(rate), rel=1e-6)
    last = lines[-1]
    rate = last["tokens_per_second"] * config.flops_per_token
    assert last["flops_per_second"] == pytest.approx(rate)


def test_more_than_one_epoch_is_said(data, tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), width=300)
    config = tiny_config(data.folder, steps=1000)
    monkeypatch.setattr(
        trainer.states, "make_schedule", signalled(trainer.states.make_schedule, TERM)
    )
    with pytest.raises(Interrupted):
        trainer.train(config, tmp_path / "run", "may", Display(console))
    epochs = 8000 / ((len(data.train) - 1) // 16)
    tokens = f"128,000 tokens of training from {len(data.train):,} in {data.folder}"
    assert f"{epochs:.3g} epochs: {tokens}" in console.file.getvalue()


def test_milestones_stay_and_a_trace_is_left(data, tmp_path):
    config = tiny_config(data.folder)
    config.checkpoint.milestones = (2, 5)
    config.checkpoint.keep = 1
    config.profile.steps = (3, 4)
    run(config, tmp_path / "run")
    kept = sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [2, 5, 12]
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))


def test_the_same_seed_gives_the_same_losses_bit_for_bit(straight, data, tmp_path):
    workdir, summary = straight
    again = run(tiny_config(data.folder), tmp_path / "again")
    assert without_times(again) == without_times(summary)
    assert metrics(tmp_path / "again") == metrics(workdir)


def test_another_seed_gives_other_losses(straight, data, tmp_path):
    config = tiny_config(data.folder)
    config.seed = 1
    assert run(config, tmp_path / "other")["loss"] != straight[1]["loss"]


def test_a_finished_run_is_not_run_again(straight, data, monkeypatch):
    monkeypatch.setattr(trainer, "_train", None)
    assert run(tiny_config(data.folder), straight[0]) == straight[1]


@pytest.mark.parametrize(("number", "at"), [(signal.SIGTERM, 6), (signal.SIGINT, 4)])
def test_interrupted_and_resumed_equals_straight(straight, data, tmp_path, monkeypatch, number, at):
    workdir = tmp_path / "run"
    compiled = steps.train_step

    def with_a_signal(*args):
        step = compiled(*args)
        count = 0

        def stepping(*inputs):
            nonlocal count
            count += 1
            if count == at:
                os.kill(os.getpid(), number)
            return step(*inputs)

        return stepping

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", with_a_signal)
        with pytest.raises(Interrupted, match=f"after step {at}"):
            run(tiny_config(data.folder), workdir)
    assert RunFolder(workdir).status().state == "interrupted"
    assert not (workdir / "summary.json").exists()
    summary = run(tiny_config(data.folder), workdir, resume="must")
    assert without_times(summary) == without_times(straight[1])
    assert metrics(workdir) == metrics(straight[0])


def signalled(call, *numbers, at=1):
    """`call`, which sends this process the signals when it is called for the `at`th time."""
    count = 0

    def calling(*args, **kwargs):
        nonlocal count
        count += 1
        if count == at:
            for number in numbers:
                os.kill(os.getpid(), number)
        return call(*args, **kwargs)

    return calling


def interrupt(patched, name, *numbers, at=1):
    """A patch of the trainer with that behaviour."""
    return lambda patch: patch.setattr(
        patched, name, signalled(getattr(patched, name), *numbers, at=at)
    )


TERM = signal.SIGTERM


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (interrupt(trainer, "open_data", TERM), "SIGTERM before training began"),
        (interrupt(trainer.Checkpoints, "restore", TERM), "SIGTERM before training began"),
        (interrupt(trainer.states, "init_state", TERM), "SIGTERM before training began"),
        (interrupt(trainer, "train_step", TERM), "SIGTERM after step 1"),
        (interrupt(trainer, "train_step", signal.SIGHUP), "SIGHUP after step 1"),
        (interrupt(trainer, "train_step", signal.SIGUSR1), "SIGUSR1 after step 1"),
        (interrupt(trainer, "train_step", signal.SIGQUIT), "SIGQUIT after step 1"),
        (interrupt(trainer.parallel, "check_batch", signal.SIGINT), "SIGINT before training began"),
        # Validation after steps 5 and 10, and at the end; of four batches each.
        (interrupt(trainer, "validation_loss_of_run", TERM), "SIGTERM after step 5"),
        (interrupt(validation, "window_scorer", TERM, at=2), "SIGTERM after step 10"),
        (interrupt(trainer, "validation_loss_of_run", TERM, at=3), "SIGTERM after step 12"),
    ],
)  # fmt: skip
def test_interrupted_at_any_moment(data, validated, tmp_path, monkeypatch, moment, message):
    workdir, config = tmp_path / "run", validated_config(data)
    with monkeypatch.context() as patch, hangups_end():
        moment(patch)
        with pytest.raises(Interrupted, match=message):
            run(config, workdir)
    status = RunFolder(workdir).status()
    assert (status.state, status.reason) == ("interrupted", message)
    assert not (workdir / "summary.json").exists()
    assert without_times(run(config, workdir)) == without_times(validated[1])
    assert metrics(workdir) == metrics(validated[0])


@contextlib.contextmanager
def hangups_end():
    """SIGHUP does what it does in a terminal, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def validated_config(data):
    config = tiny_config(data.folder)
    config.evaluation.every_steps = 5
    return config


@pytest.fixture(scope="module")
def validated(data, tmp_path_factory):
    """(run folder, summary) of an undisturbed run with validation in between."""
    workdir = tmp_path_factory.mktemp("runs") / "validated"
    return workdir, run(validated_config(data), workdir)


def test_a_second_interrupt_stops_at_once(straight, data, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(trainer.states, "init_state", signal.SIGINT, signal.SIGINT)(patch)
        with pytest.raises(KeyboardInterrupt):
            run(tiny_config(data.folder), workdir)
    assert RunFolder(workdir).status().state == "interrupted"
    assert "second Ctrl-C" in RunFolder(workdir).status().reason
    assert without_times(run(tiny_config(data.folder), workdir)) == without_times(straight[1])


def test_an_interruption_does_not_forget_the_step(data, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    for moment in (interrupt(trainer, "train_step", TERM), interrupt(trainer, "open_data", TERM)):
        with monkeypatch.context() as patch:
            moment(patch)
            with pytest.raises(Interrupted):
                run(tiny_config(data.folder), workdir)
    assert RunFolder(workdir).status().step == 1


@pytest.mark.slow
def test_killed_and_typed_again_equals_straight(data, tmp_path):
    """kill -9 at some moment in the middle, through the command line; then there is one core less.

    A run that began on two devices goes on on two.
    """
    config_file = tmp_path / "config.py"
    config_file.write_text(
        "from tests.tiny_runs import tiny_config\n"
        f"def get_config():\n    c = tiny_config({str(data.folder)!r}, steps=200)\n"
        "    c.mesh = 'data:-1,fsdp:1,tensor:1'\n    return c\n"
    )
    command = [sys.executable, "-m", "looped_jax.train", f"--config={config_file}"]
    environment = {name: each for name, each in os.environ.items() if name != cpu_devices.CHOSEN}

    def finish(workdir, cores):
        done = subprocess.run(
            [*command, f"--workdir={workdir}"],
            env=environment | {"NPROC": cores}, cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert RunFolder(workdir).status().devices == 2
        return without_times(RunFolder(workdir).read_summary())

    victim = subprocess.Popen(
        [*command, f"--workdir={tmp_path / 'killed'}"],
        env=environment | {"NPROC": "2"}, cwd=ROOT, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log = tmp_path / "killed" / "metrics.jsonl"
    while not (log.exists() and log.read_text().count("\n") >= 30):
        time.sleep(0.02)
        assert victim.poll() is None
    victim.kill()
    victim.wait()
    assert RunFolder(tmp_path / "killed").status().state == "running"
    assert finish(tmp_path / "killed", "1") == finish(tmp_path / "whole", "2")
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")


def test_a_full_disk_while_logging_keeps_the_last_checkpoint(straight, data, tmp_path, monkeypatch):
    write = trainer.MetricsWriter.write

    def full(self, step, metrics):
        if step == 7:
            raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
        write(self, step, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.MetricsWriter, "write", full)
        with pytest.raises(OSError, match="No space left"):
            run(tiny_config(data.folder), tmp_path / "run")
    status = RunFolder(tmp_path / "run").status()
    assert (status.state, status.saved) == ("failed", 4)
    assert "No space left on device" in status.reason
    assert without_times(run(tiny_config(data.folder), tmp_path / "run")) == without_times(
        straight[1]
    )
    assert metrics(tmp_path / "run") == metrics(straight[0])


def test_divergence_keeps_the_last_good_checkpoint(data, tmp_path):
    config = tiny_config(data.folder)
    config.optimizer.rates.norm = 1e38
    with pytest.raises(Diverged):
        run(config, tmp_path / "run")
    status = RunFolder(tmp_path / "run").status()
    assert status.state == "diverged"
    assert "in steps" in status.reason
    assert not (tmp_path / "run" / "summary.json").exists()


def test_too_small_a_vocabulary_is_refused(data, tmp_path):
    config = tiny_config(data.folder)
    config.model.vocab_size = 299
    with pytest.raises(UserError, match=r"model.vocab_size = 299; allowed .* at least 300"):
        run(config, tmp_path / "run")


def test_runs_of_one_shape_share_one_compiled_step(straight, data, tmp_path):
    config = tiny_config(data.folder, steps=5)
    config.seed = 7
    config.optimizer.rates.matrix = 0.02
    resolved = trainer.resolve(config)
    mesh = trainer.parallel.mesh_from_text(config.mesh)
    compiled = steps.train_step(resolved, mesh)
    before = compiled._cache_size()
    run(config, tmp_path / "run")
    assert steps.train_step(resolved, mesh) is compiled
    assert compiled._cache_size() == before == 1


def test_validation_during_training_is_logged(data, tmp_path):
    config = tiny_config(data.folder, steps=8)
    config.evaluation.every_steps = 3
    summary = run(config, tmp_path / "run")
    found = {line["step"]: line["validation_loss"] for line in metrics(tmp_path / "run")
             if "validation_loss" in line}  # fmt: skip
    assert list(found) == [3, 6]
    assert found[3] > found[6] > summary["loss"]
