"""A run that begins with the parameters of another."""

import io

import jax
import numpy as np
import pytest
from rich.console import Console

from looped_jax import parallel
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.files import read_json
from looped_jax.progress import Display
from looped_jax.training import state as states
from looped_jax.training import trainer
from looped_jax.training.start.parameters import _places, begin_with
from tests.tiny_runs import tiny_config


@pytest.fixture(scope="module")
def source(data, tmp_path_factory):
    """A trained run of 1 + 2 x 2 + 1 layers."""
    workdir = tmp_path_factory.mktemp("runs") / "source"
    trainer.train(tiny_config(data.folder, steps=2), workdir, "may", Display(Console(quiet=True)))
    return workdir


def begun(config, data, source):
    """State, what was taken, and the parameters of the source."""
    config.init_from = str(source)
    run = resolve(config)
    mesh = parallel.mesh_from_text(config.mesh)
    with parallel.active(mesh):
        optimizer = states.make_optimizer(run.optimizer.rule)
        state, taken = begin_with(run, data, optimizer, mesh)
        of_source = resolve(tiny_config(data.folder))
        there = trainer.Checkpoints(source / "checkpoints", 2).restore(
            states.abstract_state(of_source.model, optimizer, mesh), "must"
        )
    return state, taken, there.state.params


def test_more_recurrences_take_everything_over(data, source):
    config = tiny_config(data.folder)
    config.model.recurrences = 5
    state, taken, there = begun(config, data, source)
    jax.tree.map(np.testing.assert_array_equal, state.params, there)
    assert (taken.new, taken.dropped, taken.step) == ([], [], 2)
    assert int(state.optimizer.step) == 0


def test_another_injection_and_split_names_what_is_new_and_dropped(data, source):
    config = tiny_config(data.folder)
    config.model.injection = "additive"
    config.model.core_layers = 1
    state, taken, there = begun(config, data, source)
    core, whole = state.params["core"], there["core"]
    np.testing.assert_array_equal(core["mlp"]["up"]["kernel"], whole["mlp"]["up"]["kernel"][:1])
    assert "injection/kernel" in taken.dropped
    assert "core/mlp/up/kernel[1:2]" in taken.dropped
    assert taken.new == []
    wider = tiny_config(data.folder)
    wider.model.mlp_hidden = 96
    _, taken, _ = begun(wider, data, source)
    assert "core/mlp/down/kernel" in taken.new
    assert "core/mlp/down/kernel" in taken.dropped
    assert "core/attn/out/kernel" in taken.taken


@pytest.mark.parametrize(
    ("total", "wanted", "places"),
    [
        (20, (2, 4, 2), ([0, 1], [2, 3, 4, 5], [18, 19])),
        (6, (1, 6, 1), ([0], [1, 2, 3, 4, None, None], [5])),
        (2, (2, 1, 2), ([0, 1], [None], [None, None])),
    ],
)
def test_layers_are_counted_from_both_ends(total, wanted, places):
    stacks = ("prelude", "core", "coda")
    assert _places(total, dict(zip(stacks, wanted, strict=True))) == dict(
        zip(stacks, places, strict=True)
    )


def test_a_run_that_begins_so_says_and_writes_it(data, source, tmp_path):
    config = tiny_config(data.folder, steps=1)
    config.init_from = str(source)
    console = Console(file=io.StringIO(), width=10_000)
    trainer.train(config, tmp_path / "run", "may", Display(console))
    written = read_json(tmp_path / "run" / "init_from.json")
    assert written["source"] == str(source)
    assert "embed/embedding" in written["taken"]
    assert f"begins with step 2 of {source}; taken over: " in console.file.getvalue()
    assert "new: none; dropped: none" in console.file.getvalue()


def test_what_cannot_be_begun_with(data, source, tmp_path):
    config = tiny_config(data.folder)
    with pytest.raises(UserError, match=r"holds no config.json"):
        begun(config, data, tmp_path)
    config.init_from_step = 7
    with pytest.raises(UserError, match=r"holds no checkpoint of step 7: there are 2"):
        begun(config, data, source)
    (source / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"allowed: a run folder with its tokenizer.json"):
        begun(config, data, source)
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"a run with the tokenizer of .*, which has other tokens"):
        begun(config, data, source)
