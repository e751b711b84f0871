"""Inspecting a run: views equal the measurements they show, and are shown."""

import io
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from rich.console import Console

from looped_jax import evaluate as command
from looped_jax import generate
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.evaluation.scored.trajectory import loop_scorer
from looped_jax.evaluation.scored.windows import score
from looped_jax.evaluation.settings import Settings
from looped_jax.files import read_json
from looped_jax.generation.sampling import Sampling
from looped_jax.inspection import figures, text, views
from looped_jax.inspection.matrices import matrices, matrix_table
from looped_jax.model.accounting import abstract_parameters, count_parameters
from looped_jax.model.lm import LoopedLM
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from tests.model.tiny import READOUT, SANDWICH, random_params, tiny, with_injection
from tests.tiny_runs import tiny_config
from tests.untrained_runs import write_untrained_run

QUIET = Display(Console(quiet=True))
SETTINGS = Settings(max_windows=8, recurrences=3, resamples=20)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    config = tiny_config(data.folder, ends=1)
    params = random_params(resolve(config).model)
    config.name = "[red]one"  # which is no mark-up
    return write_untrained_run(tmp_path_factory.mktemp("run") / "one", config, params)


@pytest.fixture(scope="module")
def opened(run):
    with command.opened(run.path, QUIET, SETTINGS) as trained:
        yield trained


@pytest.fixture(scope="module")
def inspection(opened):
    return views.inspect(opened, max_tokens=6)


@pytest.mark.parametrize(
    "model", [with_injection("hyperconnect"), tiny(**SANDWICH), tiny(**READOUT)]
)
def test_every_matrix_has_its_norms(model):
    params = random_params(model)
    table = matrix_table(params)
    seen = matrices(params)
    assert all(matrix.ndim == 2 for *_, matrix in seen)
    for (part, layer, name, matrix), row in zip(seen, table.itertuples(), strict=True):
        assert (part, layer, name) == (row.part, row.layer, row.matrix)
        singular = np.linalg.svd(matrix, compute_uv=False)
        assert row.frobenius == pytest.approx(np.linalg.norm(matrix), rel=1e-5)
        assert row.rms == pytest.approx(np.sqrt(np.mean(np.square(matrix))), rel=1e-5)
        assert singular[0] * 0.97 <= row.spectral <= singular[0] * (1 + 1e-5)
    layers = table[table["layer"] >= 0]
    n = count_parameters(model)
    assert (layers["rows"] * layers["columns"]).sum() == n.n_once + n.n_rec
    keys = params["core"]["attn"]["qkv"]["kernel"][1][:, 1]
    assert seen[[s[:3] for s in seen].index(("core", 1, "k"))][3] == pytest.approx(keys)


def test_loops_are_those_of_the_model(opened, inspection):
    """Loss and KL are what the suites measure; norms are those of the model's own states."""
    model = opened.run.model
    loops, scored = score(opened, loop_scorer(model, 3, opened.run.loss.chunk, opened.mesh), "")
    assert inspection.tokens == len(scored)
    for name, values_RN in (("loss", loops.nats), ("kl", loops.kl[1:])):
        shown = getattr(inspection, name)
        means = [mean.value for mean in shown.mean]
        np.testing.assert_allclose(means, values_RN.mean(axis=1), rtol=1e-5)
        np.testing.assert_allclose(shown.quantiles[0.5], np.median(values_RN, axis=1), rtol=1e-5)
    assert inspection.loss.loops == [1, 2, 3]
    differences = loops.nats - loops.nats[1]  # trained at two loops
    means = [mean.value for mean in inspection.gain.mean]
    np.testing.assert_allclose(means, differences.mean(axis=1), atol=1e-7)
    assert inspection.gain.mean[1].ci95 == (0, 0)
    assert inspection.gain.mean[0].standard_error < inspection.loss.mean[0].standard_error
    assert inspection.kl.loops == inspection.passage.loops == [2, 3]

    lm, T = LoopedLM(model), opened.run.data.sequence_length
    tokens = opened.data.validation.read(0, T)[None]
    apply = lambda method, *args: lm.apply({"params": opened.params}, *args, method=method)
    input_BTD = apply("prelude", apply("embed", tokens))
    states = apply("trajectory", apply("initial_state", input_BTD), input_BTD, 3)
    first = views.inspect_loops(opened, 3)[0]["norm"][:, :T]
    np.testing.assert_allclose(first, np.linalg.norm(states[:, 0], axis=-1), rtol=1e-5)


def test_passage_and_samples(opened, inspection):
    tokenizer = opened.data.tokenizer()
    passage = inspection.passage
    assert passage.kl.shape == (2, len(passage.texts)) == (2, views.PASSAGE_TOKENS)
    whole = tokenizer.decode(opened.data.validation.read(1, views.PASSAGE_TOKENS))
    assert "".join(passage.texts) == whole
    assert list(inspection.samples) == [1, 2, 3]
    alone = generate.load(opened.folder.path).generate(
        [inspection.prompt], recurrences=3, max_tokens=6, sampling=Sampling(temperature=0.0)
    )
    assert inspection.samples[3] == alone[0]


def test_depths_of_samples():
    assert views.sample_depths(4, 8) == [1, 2, 4, 8]
    assert views.sample_depths(4, 5) == [1, 2, 4, 5]
    assert views.sample_depths(1, 2) == [1, 2]


def test_what_is_printed(inspection):
    console = Console(width=80, file=io.StringIO())
    text.show(inspection, console)
    shown = console.file.getvalue()
    assert "[red]one" in shown
    assert "…" not in shown  # no number is cut off
    assert f"{inspection.parameters.total:,}" in shown
    assert f"{inspection.loss.mean[2].value:.4g}" in shown
    row = inspection.matrices.iloc[-1]
    assert f"{row['spectral']:.3g}" in shown
    assert "r = 1" in shown
    assert inspection.samples[1].text.split("\n")[0][:10] in shown


@pytest.mark.parametrize(
    ("kl", "digit"), [(3.0, 0), (0.2, 0), (0.05, 1), (2e-3, 2), (1e-12, 9), (0.0, 9)]
)
def test_digits_of_the_heat_map(kl, digit):
    assert text.settledness(kl) == digit


def test_heat_map_has_a_digit_for_each_token_and_loop():
    kl = np.array([[0.5, 2e-3], [5e-2, 2e-5]])
    lines = text.heat_map(views.Passage([" a\n", "[b]"], [2, 3], kl)).plain.splitlines()
    assert lines[0].endswith("  23  loop")
    assert lines[1].endswith(r" a\n  01")
    assert lines[2].split() == ["[b]", "24"]


def test_figures_show_the_numbers(inspection, tmp_path):
    made = dict(figures.figures(inspection))
    assert list(made) == ["loops.png", "passage.png", "matrices.png"]
    loss = made["loops.png"].axes[0]
    shown = loss.containers[0].lines[0].get_ydata()
    np.testing.assert_allclose(shown, [mean.value for mean in inspection.gain.mean])
    assert f"{inspection.loss.mean[1].value:.3f}" in loss.get_title()
    image = made["passage.png"].axes[0].images[0].get_array()
    np.testing.assert_allclose(image, np.maximum(inspection.passage.kl, 1e-7))
    lines = made["matrices.png"].axes[0].lines
    assert {line.get_label() for line in lines} == {"q", "k", "v", "out", "up", "down"}
    assert all(len(line.get_xdata()) == 4 for line in lines)  # 1 + 2 + 1 layers
    for name, figure in made.items():
        figure.savefig(tmp_path / name)


@pytest.mark.slow  # the README's own call is tested by default
def test_the_command(data, tmp_path):
    run = write_untrained_run(tmp_path / "run", tiny_config(data.folder))
    before = run.summary_path.read_bytes()
    call = [
        sys.executable, "-m", "looped_jax.evaluate", f"--workdir={run.path}", "--inspect",
        "--max_windows=4", "--resamples=5",
    ]  # fmt: skip
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Norms of the matrices" in done.stdout
    out = run.path / "inspect"
    assert done.stdout.splitlines()[-1] == str(out)
    assert sorted(path.name for path in out.iterdir()) == [
        "inspection.json", "loops.png", "matrices.png", "passage.png",
    ]  # fmt: skip
    numbers = read_json(out / "inspection.json")
    assert numbers["loss"]["loops"] == [1, 2, 3, 4]
    assert numbers["tokens"] == 4 * 16
    assert run.summary_path.read_bytes() == before  # no suite was run


def test_an_unfinished_run_says_how_far_it_is(run, tmp_path):
    unfinished = shutil.copytree(run.path, tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    with RunFolder(unfinished).lock(), command.opened(unfinished, QUIET, SETTINGS) as trained:
        training = views.inspect(trained, depths=[1], max_tokens=1).training
    assert training == {"steps": "2 of 12", "tokens": 2 * 8 * 16, "seed": 0}
    with pytest.raises(UserError, match=r"holds no summary\.json"):
        command.evaluate(unfinished, ["loss"], QUIET)


def test_names_of_parameters_are_all_seen():
    """Every kernel and embedding of every family is a matrix of the table."""
    for model in (with_injection("diagonal"), tiny(**SANDWICH), tiny(**READOUT)):
        shapes = abstract_parameters(model)
        kernels = [
            leaf.size
            for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
            if path[-1].key in ("kernel", "embedding")
        ]
        table = matrix_table(random_params(model))
        assert (table["rows"] * table["columns"]).sum() == sum(kernels)
