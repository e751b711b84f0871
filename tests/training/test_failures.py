"""Whatever happens to a run, started again it ends as the undisturbed run, bit for bit."""

import io
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from looped_jax.data import shards
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError
from looped_jax.interruption import Interrupted, StopRequest
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from looped_jax.training import trainer
from looped_jax.training.reporting import Diverged
from looped_jax.training.start import data as start_data
from tests.tiny_runs import tiny_config
from tests.training import faults

ROOT = Path(__file__).parents[2]


def run(data, workdir, resume="may", mesh="data:1,fsdp:1,tensor:1", said=None):
    config = tiny_config(data.folder)
    config.mesh = mesh
    return train(config, workdir, resume, said)


def train(config, workdir, resume, said=None):
    """`said` is a file that gets what a terminal would show."""
    console = Console(file=said) if said else Console(quiet=True)
    return trainer.train(config, workdir, resume, Display(console))


def numbers(workdir):
    """All that a run leaves and that does not depend on the clock: losses of all steps, summary."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    losses = [(line["step"], line["loss"]) for line in map(json.loads, lines)]
    summary = RunFolder(workdir).read_summary()
    timed = ("seconds", "tokens_per_second", "config_digest")
    return losses, {name: value for name, value in summary.items() if name not in timed}


def after_step(step, do):
    """A `train_step` that calls `do` with the metrics of a step, before they are handed out."""
    compiled = trainer.train_step

    def with_it(*args):
        inner, count = compiled(*args), itertools.count(1)

        def stepping(*inputs):
            state, metrics = inner(*inputs)
            return state, do(metrics) if next(count) == step else metrics

        return stepping

    return with_it


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
    run(data, workdir)
    return numbers(workdir)


@pytest.fixture(scope="module")
def stopped_once(data, tmp_path_factory):
    """The folder of a run that was stopped after step 8; it has checkpoints of steps 4 and 8."""
    workdir = tmp_path_factory.mktemp("runs") / "stopped"

    def stop(metrics):
        os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "train_step", after_step(8, stop))
        with pytest.raises(Interrupted):
            run(data, workdir)
    return workdir


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of it, for one test to spoil."""
    return shutil.copytree(stopped_once, tmp_path / "run")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda newest: faults.truncate(faults.array_file(newest)), "bytes instead of"),
        (lambda newest: faults.flip_bit(faults.array_file(newest)), "does not match its digest"),
        (lambda newest: faults.flip_bit(faults.array_file(newest, "rest")), "not match its digest"),
        (faults.empty_folder, "its folder is empty"),
    ],
)
def test_a_damaged_newest_checkpoint(data, stopped, undisturbed, caplog, damage, reason):
    damage(stopped / "checkpoints" / "8")
    said = io.StringIO()
    with caplog.at_level(logging.INFO):
        run(data, stopped, resume="must", said=said)
    assert "checkpoints/8 is damaged: " in caplog.text
    assert reason in caplog.text
    assert said.getvalue().splitlines()[:2] == [
        "tiny goes on after step 4", "tiny: 4/12 steps (33 %), compiling",
    ]  # fmt: skip
    assert numbers(stopped) == undisturbed


@pytest.mark.parametrize("resume", ["may", "must"])
def test_never_from_zero_when_all_checkpoints_are_damaged(data, stopped, resume):
    for step in ("4", "8"):
        faults.flip_bit(faults.array_file(stopped / "checkpoints" / step))
    with pytest.raises(UserError, match=r"every checkpoint .* is damaged .*step 8: .*step 4: "):
        run(data, stopped, resume)
    assert RunFolder(stopped).status().state == "failed"


def test_must_and_no(data, stopped, undisturbed, tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint and resume is 'must'"):
        run(data, tmp_path / "new", resume="must")
    with pytest.raises(UserError, match=r"holds checkpoints \(newest: step 8\) and resume is 'no'"):
        run(data, stopped, resume="no")
    run(data, stopped, resume="must")
    assert numbers(stopped) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data:2,fsdp:2,tensor:2"])
def test_restored_on_another_mesh(data, stopped, undisturbed, mesh):
    run(data, stopped, resume="must", mesh=mesh)
    (found, summary), (expected, undisturbed_summary) = numbers(stopped), undisturbed
    assert found[:8] == expected[:8]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert summary["loss"] == pytest.approx(undisturbed_summary["loss"], abs=2e-5)


def test_not_finite_once(data, undisturbed, tmp_path, monkeypatch):
    """A device that computes nonsense for a moment: the last good checkpoint is gone on from."""
    poison = lambda metrics: metrics | {"loss": metrics["loss"] * np.float32(np.nan)}
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", after_step(6, poison))
        with pytest.raises(Diverged, match="loss is nan in steps 6 to 6"):
            run(data, tmp_path / "run")
    assert RunFolder(tmp_path / "run").status().state == "diverged"
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["4"]
    run(data, tmp_path / "run")
    assert numbers(tmp_path / "run") == undisturbed


def test_the_clock_goes_backwards(data, stopped, undisturbed, monkeypatch):
    now = itertools.count(time.time(), -3600)
    monkeypatch.setattr(time, "time", lambda: next(now))
    summary = run(data, stopped, resume="must")
    assert 0 < summary["seconds"] < 3600
    assert summary["tokens_per_second"] > 0
    assert numbers(stopped) == undisturbed


def test_a_second_launch_is_refused(data, stopped, undisturbed):
    with RunFolder(stopped).lock():
        before = RunFolder(stopped).status()
        with pytest.raises(UserError, match=rf"is in use by pid {os.getpid()} on host"):
            run(data, stopped)
        assert RunFolder(stopped).status() == before
    run(data, stopped)
    assert numbers(stopped) == undisturbed


@pytest.mark.parametrize(
    ("key", "value", "change"),
    [
        ("model.compute_dtype", "bfloat16", r"model.compute_dtype float32 → bfloat16"),
        ("model.rope_base", 500.0, r"model.rope_base 10000.0 → 500.0"),
        ("model.width", 32, r"model.width 16 → 32"),
    ],
)
def test_a_changed_config_is_refused_by_key(data, stopped, undisturbed, key, value, change):
    config = tiny_config(data.folder)
    with config.unlocked():
        config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=change):
        train(config, stopped, "may")
    run(data, stopped, resume="must")
    assert numbers(stopped) == undisturbed


def test_changed_data_is_refused_by_digest(data, novel, stopped, undisturbed, tmp_path):
    (tmp_path / "train.txt").write_text(novel[200_000:260_000], "utf-8")
    (tmp_path / "held_out.txt").write_text(novel[:60_000], "utf-8")
    other = prepare(
        str(tmp_path / "train.txt"), tmp_path / "other",
        validation=str(tmp_path / "held_out.txt"), vocab_size=300, say=str,
    )  # fmt: skip
    config = tiny_config(other.folder)
    with pytest.raises(
        UserError, match=f"digest {other.digest[:12]}; allowed .*: {data.digest[:12]}"
    ):
        train(config, stopped, "may")
    assert RunFolder(stopped).status().state == "failed"
    run(data, stopped, resume="must")
    assert numbers(stopped) == undisturbed


def test_a_shard_that_changed_under_its_manifest_is_named(data, stopped, undisturbed, tmp_path):
    config = tiny_config(tmp_path / "copy")
    shutil.copytree(data.folder, tmp_path / "copy")
    faults.flip_bit(tmp_path / "copy" / "train-00000.npy")
    with pytest.raises(UserError, match=r"train-00000\.npy is not the file that was prepared"):
        train(config, stopped, "may")
    shutil.copytree(stopped, tmp_path / "unverified")
    config.data.verify = False
    train(config, tmp_path / "unverified", "must")
    assert numbers(tmp_path / "unverified") != undisturbed
    run(data, stopped, resume="must")
    assert numbers(stopped) == undisturbed


def test_long_verification_shows_progress(data, tmp_path, monkeypatch):
    monkeypatch.setattr(start_data, "LONG_TO_READ", 0)
    console = Console(file=io.StringIO())
    start_data.verify_data(data, Display(console), StopRequest())
    size = f"{data.size:,}"
    assert f"verifying {data.folder}: {size}/{size} bytes (100 %)" in console.file.getvalue()


def test_what_was_verified_is_remembered(data, tmp_path, monkeypatch):
    """By size, time of change and inode: a file that is replaced is read again."""
    copy = TokenData.open(shutil.copytree(data.folder, tmp_path / "copy"))
    read = []
    verify_data = start_data.verify_data
    monkeypatch.setattr(
        start_data, "verify_data",
        lambda data, display, stop, paths: (
            read.append({p.name for p in paths}) or verify_data(data, display, stop, paths)
        ),
    )  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    verify = lambda: start_data.verify_once(
        copy, folder, Display(Console(quiet=True)), StopRequest()
    )
    verify()
    verify()
    assert read == [{path.name for path in copy.digests}, set()]
    faults.flip_bit(copy.folder / "train-00000.npy")
    with pytest.raises(UserError, match=r"train-00000\.npy is not the file that was prepared"):
        verify()
    assert read[-1] == {"train-00000.npy"}


def test_a_signal_during_verification_ends_it_there(data, tmp_path, monkeypatch):
    read = []

    def hashed(path):
        read.append(path)
        os.kill(os.getpid(), signal.SIGTERM)
        return data.digests[path]

    monkeypatch.setattr(shards, "sha256_of_file", hashed)
    with pytest.raises(Interrupted, match="SIGTERM before training began"):
        run(data, tmp_path / "run")
    assert len(read) == 1
    assert RunFolder(tmp_path / "run").status().state == "interrupted"


def test_a_purged_scratch_is_not_a_fresh_start(data, stopped, undisturbed, tmp_path):
    shutil.move(stopped / "checkpoints", tmp_path / "elsewhere")
    with pytest.raises(
        UserError, match=r"status.json tells of a checkpoint of step 8, and .* none"
    ):
        run(data, stopped)
    assert RunFolder(stopped).status().state == "failed"
    shutil.move(tmp_path / "elsewhere", stopped / "checkpoints")
    run(data, stopped)
    assert numbers(stopped) == undisturbed


def test_a_run_that_diverged_before_its_first_checkpoint_may_start_again(data, tmp_path):
    config = tiny_config(data.folder)
    config.optimizer.rates.norm = 1e38
    config.checkpoint.every_steps = 0
    for _ in range(2):
        with pytest.raises(Diverged):
            train(config, tmp_path / "run", "may")


def test_metrics_without_their_middle_are_said(data, stopped, caplog):
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join(lines[:2] + lines[6:]))
    run(data, stopped)
    said = "metrics.jsonl lacks 4 of the 8 lines that were written up to step 8: most of them"
    assert f"{said} between steps 2 and 7" in caplog.text


def test_a_death_between_summary_and_status_is_mended(data, stopped, undisturbed):
    run(data, stopped)
    RunFolder(stopped).set_status("running")
    with pytest.raises(UserError, match="holds a finished run and resume is 'no'"):
        run(data, stopped, resume="no")
    run(data, stopped)
    assert RunFolder(stopped).status().state == "finished"
    assert numbers(stopped) == undisturbed


def test_a_status_cut_in_half_is_replaced(data, stopped, undisturbed, caplog):
    status = stopped / "status.json"
    status.write_text(status.read_text()[:30])
    run(data, stopped)
    assert "status.json is not a JSON file" in caplog.text
    assert numbers(stopped) == undisturbed


# The command, which dies or runs out of disk at a certain place.
COMMAND = """
import os, signal, sys
from pathlib import Path
from looped_jax import cli, train
from looped_jax import run_folder
from looped_jax.training import checkpoint_files, checkpoints, reporting
from tests.training import faults
moment = sys.argv.pop(1)
die = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)

def second_time(call):
    def calling(*args, **kwargs):
        calls.append(call)
        return die() if calls.count(call) == 2 else call(*args, **kwargs)
    calls = []
    return calling

if moment == "digests":
    checkpoint_files.write_json = second_time(checkpoint_files.write_json)
if moment == "old one goes":
    checkpoint_files.remove_old = second_time(checkpoint_files.remove_old)
if moment == "orbax writes":
    unfinished = checkpoint_files.unfinished_path
    def path_and_death(folder, step, attempt):
        if step == 8:
            import threading
            def watch():
                while not list(folder.glob("8.unfinished*/params*")):
                    pass
                die()
            threading.Thread(target=watch).start()
        return unfinished(folder, step, attempt)
    checkpoint_files.unfinished_path = path_and_death
if moment == "summary":
    run_folder.RunFolder.write_summary = die
if moment == "half a line":
    write = reporting.MetricsWriter.write
    def half(self, step, metrics):
        if step == 7:
            self._file.write(b'{"step": 7, "lo')
            self._file.flush()
            while not (Path(self._file.name).parent / "checkpoints/4").exists():
                pass
            die()
        write(self, step, metrics)
    reporting.MetricsWriter.write = half
if moment == "disk full":
    save = checkpoints.Checkpoints.save
    def full(self, step, state, extra):
        if step < 8:
            return save(self, step, state, extra)
        self.wait()
        with faults.no_space():
            save(self, step, state, extra)
            self.wait()
    checkpoints.Checkpoints.save = full
train.define_flags()
cli.run(train.main)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder that keeps compiled programs for the processes of this file."""
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        ("orbax writes", {"4"}),
        pytest.param("digests", {"4"}, marks=pytest.mark.slow),
        pytest.param("old one goes", {"4", "8"}, marks=pytest.mark.slow),
        pytest.param("half a line", {"4"}, marks=pytest.mark.slow),
        pytest.param("summary", {"8", "12"}, marks=pytest.mark.slow),
        pytest.param("disk full", {"4"}, marks=pytest.mark.slow),
    ],
)
def test_killed_while_it_writes(data, undisturbed, tmp_path, compiled, moment, left):
    config_file, workdir = tmp_path / "config.py", tmp_path / "run"
    config_file.write_text(
        "from tests.tiny_runs import tiny_config\n"
        f"def get_config():\n    return tiny_config({str(data.folder)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, moment, f"--config={config_file}", f"--workdir={workdir}"],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compiled)},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    status = RunFolder(workdir).status()
    if moment == "disk full":
        assert done.returncode == 1, done.stderr
        assert "failed: cannot save the checkpoint of step 8 (step 4 is untouched)" in done.stderr
        assert status.state == "failed"
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert status.state == "running"
    checkpoints = {path.name for path in (workdir / "checkpoints").iterdir()}
    assert {name for name in checkpoints if name.isdigit()} == left
    run(data, workdir, resume="must")
    assert numbers(workdir) == undisturbed
    assert RunFolder(workdir).status().state == "finished"
