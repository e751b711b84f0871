"""looped_jax.evaluate on run folders: what it adds to them, and what it refuses."""

import json
import os
import shutil
import subprocess
import sys
import types

import jax
import pytest
from rich.console import Console

from configs import elastic_depth
from looped_jax import evaluate as command
from looped_jax.config import resolve, to_json
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError
from looped_jax.evaluation.settings import Settings
from looped_jax.files import read_json, write_json
from looped_jax.model.boxes import unboxed
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder, config_digest
from looped_jax.training.checkpoints import Checkpoints
from looped_jax.training.state import init_params

QUIET = Display(Console(quiet=True))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with one run that says it is finished."""
    root = tmp_path_factory.mktemp("study")
    text = "It is a truth universally acknowledged, that loops want depth. " * 40
    (root / "a.txt").write_text(text)
    (root / "b.txt").write_text(text[:700])
    prepare(
        str(root / "a.txt"), root / "data", validation=str(root / "b.txt"), vocab_size=260, say=str
    )
    config = elastic_depth.cpu(mean=2, depth="fixed")
    config.data.folder = str(root / "data")
    config.data.sequence_length = 16
    config.evaluation.batch_size = 8
    config.model.vocab_size = 260
    config.model.width = 16
    config.model.head_dim = 8
    config.model.mlp_hidden = 16
    config.mesh = "data:1,fsdp:1,tensor:1"
    folder = RunFolder(root / "runs" / "one")
    with folder.lock():
        folder.write_config(to_json(config))
        save_untrained(resolve(config), folder)
        digest = TokenData.open(root / "data").digest
        folder.write_summary({"run": config.name, "loss": 9.9, "data_digest": digest})
    return root / "runs"


def save_untrained(run, folder):
    """A checkpoint of the model as it is initialised."""
    params = jax.jit(lambda: unboxed(init_params(run.model, 0)))()
    with Checkpoints(folder.checkpoints_path, keep=1) as checkpoints:
        checkpoints.save(2, {"params": params}, {})
        checkpoints.wait()


def test_a_suite_adds_its_part_and_leaves_the_rest(study):
    command.evaluate(study / "one", ["depth", "loss"], QUIET, Settings(depths=(1, 2, 3)))
    after = read_json(study / "one" / "summary.json")
    assert after["run"] == "fixed_mean2"
    assert after["depth"]["depths"] == [1, 2, 3]
    # The loss suite measures at the training mean.
    assert after["loss"] != 9.9
    assert after["depth"]["loss"][1]["value"] == pytest.approx(after["loss"], rel=1e-5)
    command.evaluate(study / "one", ["depth"], QUIET, Settings(depths=(2, 4)))
    again = read_json(study / "one" / "summary.json")
    assert again["depth"]["depths"] == [2, 4]
    assert {**again, "depth": 0} == {**after, "depth": 0}


def test_what_was_measured_is_said(study, monkeypatch, capsys):
    """And not how it was measured."""

    class Given(types.SimpleNamespace):
        __getitem__ = lambda self, name: types.SimpleNamespace(present=True)

    given = Given(workdir=str(study), data=None, inspect=False, suites=["loss", "depth"])
    monkeypatch.setattr(command, "flags", types.SimpleNamespace(FLAGS=given))
    monkeypatch.setattr(
        command, "settings_from_flags", lambda: Settings(depths=(1, 2), resamples=5)
    )
    command.main([])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    summary = read_json(study / "one" / "summary.json")
    n = summary["validation_tokens"]
    assert lines[0].startswith(f"loss {summary['loss']:.4f} ± 0.")
    assert lines[0].endswith(f" bits per byte) on {n} tokens")
    assert lines[1] == f"loss by depth in nats, {n} tokens, {-(-n // 16)} windows"
    assert [line.split()[0] for line in lines[2:5]] == ["r", "1", "2"]
    assert lines[4].endswith("← trained")
    value = summary["depth"]["loss"][1]["value"]
    assert lines[4].split()[1] == f"{value:.4f}"
    assert lines[5].startswith("best at r = ")
    assert lines[6:] == [str(study / "one" / "summary.json")]


def test_a_folder_of_runs_stands_for_the_finished_ones(study, tmp_path):
    (study / "started").mkdir(exist_ok=True)
    assert list(command.finished_runs(study)) == [study / "one"]
    assert list(command.finished_runs(study / "one")) == [study / "one"]
    with pytest.raises(UserError, match="is no run folder and holds no finished run"):
        list(command.finished_runs(tmp_path))


def test_figures_are_not_written_through_a_link(study, tmp_path):
    run = tmp_path / "one"
    shutil.copytree(study / "one", run)
    (tmp_path / "elsewhere").mkdir()
    (run / "inspect").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"inspect is a symbolic link; allowed: a folder in "):
        command.inspect(run, QUIET, Console(quiet=True), Settings())
    assert not any((tmp_path / "elsewhere").iterdir())


def test_an_unknown_suite(study):
    with pytest.raises(UserError, match="suite 'dpeth'; allowed: loss, depth, convergence, exits"):
        command.evaluate(study / "one", ["dpeth"], QUIET)


def test_a_checkpoint_of_another_architecture(study, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(study / "one", run)
    content = read_json(run / "config.json")
    content["config"]["model"]["mlp_hidden"] = 24
    content["digest"] = config_digest(content["config"])
    write_json(run / "config.json", content)
    with pytest.raises(UserError) as raised:
        command.evaluate(run, ["depth"], QUIET)
    assert "\n" not in str(raised.value)
    assert "mlp" in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--depths=4,0"], "depths has 0; allowed: 1 recurrence or more"),
        (["--depths=4,many"], "--depths=4,many; allowed: whole numbers with commas"),
        (["--epsilons=0"], "epsilons has 0; allowed: above 0 nats"),
        (["--epsilons=1e-3,x"], "--epsilons=1e-3,x; allowed: numbers with commas"),
        (["--recurrences=0"], "--recurrences=0; allowed: 1 or more"),
    ],
)
def test_flags_that_are_not_allowed(flags, message, study, monkeypatch):
    values = command.flags.FlagValues()
    monkeypatch.setattr(command.flags, "FLAGS", values)
    with monkeypatch.context() as patch:
        for name in ("string", "list", "integer", "bool"):
            define = getattr(command.flags, f"DEFINE_{name}")
            patch.setattr(
                command.flags,
                f"DEFINE_{name}",
                lambda *args, define=define, **kwargs: define(*args, **kwargs, flag_values=values),
            )
        command.define_flags()
    values(["evaluate", f"--workdir={study}", *flags])
    with pytest.raises(UserError, match=message):
        command.settings_from_flags()


def test_the_command_line(study, compiled):
    """One line and status 2 for a wrong call; nothing in the run folder changes."""
    before = (study / "one" / "summary.json").read_bytes()
    call = [
        sys.executable, "-m", "looped_jax.evaluate", f"--workdir={study}", "--suites=exits",
        "--policies=magic", "--recurrences=4",
    ]  # fmt: skip
    done = subprocess.run(call, env=os.environ | compiled, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: policy 'magic'; allowed: ")
    assert "Traceback" not in done.stderr
    assert (study / "one" / "summary.json").read_bytes() == before
    assert json.loads(before)["run"] == "fixed_mean2"
