"""looped_jax.evaluate on run folders: what it adds to them, and what it refuses."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import types

import jax
import pytest
from rich.console import Console

from configs import elastic_depth
from looped_jax import evaluate as command
from looped_jax.config import resolve, resolve_json, to_json
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError
from looped_jax.evaluation.settings import Settings
from looped_jax.files import read_json, write_json
from looped_jax.model.boxes import unboxed
from looped_jax.progress import Display
from looped_jax.reading import opening
from looped_jax.reading.opening import Choice
from looped_jax.run_folder import RunFolder, config_digest
from looped_jax.training.checkpoints import Checkpoints
from looped_jax.training.start.data import keep_with_run
from looped_jax.training.state import init_params
from tests.training import faults

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
        data = TokenData.open(root / "data")
        save_untrained(resolve(config), folder, data.digest)
        keep_with_run(data, folder)
        folder.write_summary({"run": config.name, "loss": 9.9, "data_digest": data.digest})
    return root / "runs"


def save_untrained(run, folder, digest):
    """A checkpoint of the model as it is initialised."""
    params = jax.jit(lambda: unboxed(init_params(run.model, 0)))()
    with Checkpoints(folder.checkpoints_path, keep=1) as checkpoints:
        checkpoints.save(2, {"params": params}, {"data_digest": digest})
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
    changed = {"depth": 0, "measured": 0, "digest": 0}
    assert again | changed == after | changed


def test_what_was_measured_is_said(study, monkeypatch, capsys):
    """And not how it was measured."""

    class Given(types.SimpleNamespace):
        __getitem__ = lambda self, name: types.SimpleNamespace(present=name == "suites")

    given = Given(
        workdir=str(study), out=None, inspect=False, again=False, processes=1, backend=None,
        suites=["loss", "depth"],
    )  # fmt: skip
    monkeypatch.setattr(command, "flags", types.SimpleNamespace(FLAGS=given))
    monkeypatch.setattr(opening, "choice_from_flags", Choice)
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
    assert opening.run_folders(study) == [study / "one"]
    assert opening.run_folders(study / "one") == [study / "one"]
    with pytest.raises(UserError, match="is no run folder and holds no finished run"):
        opening.run_folders(tmp_path)


@pytest.fixture
def run(study, tmp_path):
    """A copy of the run that may be changed."""
    shutil.copytree(study / "one", tmp_path / "runs" / "one")
    return tmp_path / "runs" / "one"


@pytest.fixture(scope="module")
def other_data(study):
    """Another text, prepared with the same tokenizer; its training text is gone."""
    root = study.parent
    (root / "c.txt").write_text("There was no hope for him this time: the third stroke. " * 9)
    prepare(
        str(root / "b.txt"), root / "other", validation=str(root / "c.txt"),
        tokenizer_file=root / "data" / "tokenizer.json", say=str,
    )  # fmt: skip
    for shard in (root / "other").glob("train-*"):
        shard.unlink()
    return root / "other"


def said(call, *args, **kwargs) -> str:
    """What a call says on its display."""
    console = Console(file=io.StringIO(), width=10_000)
    call(*args[:2], Display(console), *args[2:], **kwargs)
    return console.file.getvalue()


def test_a_loss_that_was_there_is_replaced_with_a_word_and_measured_once(run):
    RunFolder(run).write_summary(RunFolder(run).read_summary() | {"loss": 9.9, "measured": {}})
    first = said(command.evaluate, run, ["loss"])
    summary = RunFolder(run).read_summary()
    assert "loss 9.900000 was there and is replaced by 5." in first
    assert summary["measured"]["loss"]["replaced"] == 9.9
    assert said(command.evaluate, run, ["loss"]) == f"{run}: loss was measured before\n"
    assert said(command.evaluate, run, ["loss"], again=True) == ""
    assert RunFolder(run).read_summary()["loss"] == summary["loss"]


def test_other_data_has_a_summary_of_its_own(run, other_data):
    before = (run / "summary.json").read_bytes()
    command.evaluate(run, ["loss"], QUIET, None, Choice(data=str(other_data)))
    assert (run / "summary.json").read_bytes() == before
    digest = TokenData.open(other_data, ()).digest
    found = RunFolder(run / "evaluations" / f"other-{digest[:8]}").read_summary()
    assert found["measured"]["loss"]["data"] == str(other_data)
    assert found["measured"]["loss"]["digest"] == digest
    assert found["loss"] != RunFolder(run).read_summary()["loss"]
    assert "depth" not in found
    assert opening.run_folders(run.parent) == [run]


def test_data_with_another_tokenizer_is_refused(run, data):
    folder = RunFolder(run)
    shutil.copy(data.folder / "tokenizer.json", folder.tokenizer_path)
    shutil.copy(data.folder / "manifest.json", folder.data_manifest_path)
    with pytest.raises(UserError, match=r"has tokenizer \w{12}; allowed for .*one: \w{12}"):
        command.evaluate(run, ["loss"], QUIET)


def test_data_that_changed_under_its_manifest_is_refused(run, study, tmp_path):
    shutil.copytree(study.parent / "data", tmp_path / "data")
    faults.flip_bit(tmp_path / "data" / "validation-00000.npy")
    with pytest.raises(UserError, match=r"validation-00000.npy is not the file that was prepared"):
        command.evaluate(run, ["loss"], QUIET, None, Choice(data=str(tmp_path / "data")))


def test_a_run_folder_that_is_only_read(run, tmp_path):
    """On a mesh of more devices than its batch divides over; nothing in the folder changes."""
    files = lambda: {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    before = files()
    out, wide = tmp_path / "out", Choice(mesh="data:3,fsdp:1,tensor:1")
    command.evaluate(run, ["loss"], QUIET, None, wide, out=out)
    assert files() == before
    found = RunFolder(out).read_summary()
    assert found["measured"]["loss"]["mesh"] == "data:3,fsdp:1,tensor:1"
    command.evaluate(run, ["loss"], QUIET)
    assert RunFolder(run).read_summary()["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_a_run_of_many_devices_is_measured_on_those_that_are_here(run):
    content = read_json(run / "config.json")
    content["config"]["mesh"] = "data:64,fsdp:8,tensor:1"
    content["digest"] = config_digest(content["config"])
    write_json(run / "config.json", content)
    with command.opened(run, QUIET, Settings()) as trained:
        assert dict(trained.mesh.shape) == {"data": 8, "fsdp": 1, "tensor": 1}
        assert trained.run.evaluation.batch_size == 8


def test_a_step_that_is_asked_for(run):
    run_config = resolve_json(RunFolder(run).read_config())
    with Checkpoints(run / "checkpoints", keep=3) as checkpoints:
        params = jax.jit(lambda: unboxed(init_params(run_config.model, 1)))()
        digest = RunFolder(run).read_summary()["data_digest"]
        checkpoints.save(7, {"params": params}, {"data_digest": digest})
        checkpoints.wait()
    RunFolder(run).write_summary(RunFolder(run).read_summary() | {"steps": 7})
    command.evaluate(run, ["loss"], QUIET, None, Choice(step=2))
    (elsewhere,) = (run / "evaluations").iterdir()
    assert elsewhere.name.endswith("-step2")
    command.evaluate(run, ["loss"], QUIET)
    own, other = (RunFolder(x).read_summary()["loss"] for x in (run, elsewhere))
    assert own != other
    # The last step's checkpoint is the one that the result tells of; no older one stands for it.
    faults.flip_bit(faults.array_file(run / "checkpoints" / "7"))
    with pytest.raises(UserError, match=r"checkpoints/7 is damaged: .*; other steps there: 2"):
        command.evaluate(run, ["loss"], QUIET, again=True)


def test_a_broken_run_costs_its_line(run, monkeypatch, capsys):
    shutil.copytree(run, run.parent / "broken")
    shutil.rmtree(run.parent / "broken" / "checkpoints")
    with command_line(monkeypatch, [f"--workdir={run.parent}"]):
        assert command.main([]) == command.FAILED_STATUS
    shown = capsys.readouterr()
    assert "broken: " in shown.err
    assert "1 of 2 runs were not measured" in shown.err
    assert str(run / "summary.json") in shown.out


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


@contextlib.contextmanager
def command_line(monkeypatch, given):
    """Within, the command's flags are those."""
    values = command.flags.FlagValues()
    with monkeypatch.context() as patch:
        for name in ("string", "list", "integer", "bool", "enum", "float", "multi_string"):
            define = getattr(command.flags, f"DEFINE_{name}")
            patch.setattr(
                command.flags,
                f"DEFINE_{name}",
                lambda *args, define=define, **kwargs: define(*args, **kwargs, flag_values=values),
            )
        patch.setattr(command.flags, "FLAGS", values)
        command.define_flags()
        values(["evaluate", *given])
        yield


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--depths=4,0"], "depths has 0; allowed: 1 recurrence or more"),
        (["--depths=4,many"], "--depths=4,many; allowed: whole numbers with commas"),
        (["--epsilons=0"], "epsilons has 0; allowed: above 0 nats"),
        (["--epsilons=1e-3,x"], "--epsilons=1e-3,x; allowed: numbers with commas"),
        (["--recurrences=0"], "--recurrences=0; allowed: 1 or more"),
        (["--processes=0"], "--processes=0; allowed: 1 or more"),
    ],
)
def test_flags_that_are_not_allowed(flags, message, study, monkeypatch):
    with (
        command_line(monkeypatch, [f"--workdir={study}", *flags]),
        pytest.raises(UserError, match=message),
    ):
        command.main([])


def test_the_command_line(study):
    """One line and status 2 for a wrong call; nothing in the run folder changes."""
    before = (study / "one" / "summary.json").read_bytes()
    call = [
        sys.executable, "-m", "looped_jax.evaluate", f"--workdir={study}", "--suites=exits",
        "--policies=magic", "--recurrences=4",
    ]  # fmt: skip
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: policy 'magic'; allowed: ")
    assert "Traceback" not in done.stderr
    assert (study / "one" / "summary.json").read_bytes() == before
    assert json.loads(before)["run"] == "fixed_mean2"


@pytest.mark.slow
def test_runs_of_a_study_in_processes_of_their_own(study, tmp_path):
    """Measured once; typed again nothing is left."""
    shutil.copytree(study, tmp_path / "runs", dirs_exist_ok=True)
    call = [sys.executable, "-m", "looped_jax.evaluate", f"--workdir={tmp_path / 'runs'}",
            "--suites=loss", "--resamples=7", "--backend=local", "--workers=1"]  # fmt: skip
    first, again = (subprocess.run(call, capture_output=True, text=True) for _ in range(2))
    assert (first.returncode, first.stdout) == (0, "one: measured; 0 left\n"), first.stderr
    assert (again.returncode, again.stdout) == (0, "1 of 1 runs were measured before\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers=2"], "--workers; allowed with --backend=local"),
        (["--backend=local", "--slurm_gpus=1"], "--slurm_gpus; allowed with --backend=slurm"),
        (["--backend=local", "--processes=2"], "--processes=2; allowed without --backend=local"),
    ],
)
def test_options_of_another_backend(flags, message):
    done = subprocess.run(
        [sys.executable, "-m", "looped_jax.evaluate", "--workdir=nowhere", *flags],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
