"""Checkpoints: what was saved comes back, on any mesh, or is refused aloud.

Saves that fail or are killed have a file of their own.
"""

import functools
import json
import logging
import re
import shutil
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from looped_jax.errors import UserError
from looped_jax.training import checkpoint_files
from looped_jax.training.checkpoints import Checkpoints, restore_params
from tests.training import faults

TX = optax.partition(
    {"matrix": optax.adamw(1e-3), "rest": optax.chain(optax.clip(1.0), optax.sgd(1e-2))},
    lambda params: jax.tree.map(lambda x: "matrix" if x.ndim == 2 else "rest", params),
)


class State(struct.PyTreeNode):
    step: jax.Array
    params: dict
    opt: optax.OptState
    key: jax.Array


class Named(NamedTuple):
    params: dict
    count: jax.Array


@functools.cache
def mesh(*shape):
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(
        shape,
        ("data", "model")[: len(shape)],
        axis_types=(AxisType.Auto,) * len(shape),
        devices=devices,
    )


def shardings(tree, mesh):
    """Matrices split over all axes of the mesh, the rest on all devices."""
    matrix = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
    rest = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: matrix if x.ndim == 2 else rest, tree)


def make_state(step=0, width=16):
    """A state whose values depend on the step."""
    key = jax.random.fold_in(jax.random.key(7), step)
    params = {
        "embed": jax.random.normal(key, (8, width)),
        "layers": {
            "scale": jnp.arange(3, dtype=jnp.bfloat16) + jnp.bfloat16(step),
            "kernel": jax.random.normal(key, (8, 64)),
        },
    }
    return State(jnp.int32(step), params, TX.init(params), key)


def on(mesh, state):
    return jax.device_put(state, shardings(state, mesh))


def abstract(state, mesh=None):
    shapes = jax.eval_shape(lambda: state)
    if mesh is None:
        return shapes
    placed = shardings(shapes, mesh)
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, placed
    )


def raw(x):
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def assert_same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(raw(a), raw(b))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(folder, keep=3) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(step, make_state(step), {"tokens": 100 * step})
    return folder


@pytest.fixture
def saved(saved_once, folder):
    """A folder with the checkpoints of steps 10, 20 and 30."""
    shutil.copytree(saved_once, folder)
    return folder


def restore(folder, resume="may", state=None):
    with Checkpoints(folder, keep=3) as checkpoints:
        return checkpoints.restore(abstract(make_state() if state is None else state), resume)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# What was saved comes back.


def test_state_comes_back_with_its_structure_and_extra(saved):
    restored = restore(saved, "must")
    assert restored.step == 30
    assert restored.extra == {"tokens": 3000}
    assert isinstance(restored.state, State)
    assert_same(restored.state, make_state(30))


@pytest.mark.parametrize(
    "state",
    [
        {"params": {"w": jnp.ones((2, 2))}, "opt": (jnp.int32(3), [jnp.zeros(2)], None, {})},
        Named({"w": jnp.float16(2)}, jnp.uint32(4)),
        {"params": {"w": jnp.ones(2)}},
    ],
    ids=["dict", "named tuple", "parameters only"],
)
def test_any_tree_with_params_comes_back(folder, state):
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        assert_same(checkpoints.restore(abstract(state), "must").state, state)


@pytest.mark.parametrize(("before", "after"), [((8,), (2,)), ((4, 2), (8,)), ((2,), (2, 4))])
def test_restore_on_another_mesh(folder, before, after):
    state = make_state(5)
    wanted = abstract(state, mesh(*after))
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(5, on(mesh(*before), state), {})
        restored = checkpoints.restore(wanted, "must")
    assert_same(restored.state, state)
    for got, asked in zip(jax.tree.leaves(restored.state), jax.tree.leaves(wanted), strict=True):
        assert got.sharding.is_equivalent_to(asked.sharding, got.ndim)


def test_state_may_be_donated_straight_after_save(folder):
    negate = jax.jit(lambda params: jax.tree.map(jnp.negative, params), donate_argnums=0)
    with Checkpoints(folder, keep=5) as checkpoints:
        for step in range(1, 6):
            params = on(mesh(8), make_state(step, width=4096).params)
            checkpoints.save(step, {"params": params}, {})
            jax.block_until_ready(negate(params))
    for step in range(1, 6):
        expected = make_state(step, width=4096).params
        assert_same(restore_params(folder, abstract(expected), step).state, expected)


def test_extra_may_be_changed_straight_after_save(folder):
    extra = {"clock": {"seconds": 1.5}}
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(1, make_state(1), extra)
        extra["clock"]["seconds"] = 0.0
        assert checkpoints.restore(abstract(make_state()), "must").extra["clock"]["seconds"] == 1.5


def test_save_returns_before_the_checkpoint_is_complete(folder, monkeypatch):
    go_on = threading.Event()
    finish = checkpoint_files.complete

    def held_up(*args):
        assert go_on.wait(20)
        finish(*args)

    monkeypatch.setattr(checkpoint_files, "complete", held_up)
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(1, make_state(1), {})
        assert checkpoints.latest_step() is None
        go_on.set()
        checkpoints.wait()
        assert checkpoints.latest_step() == 1


def test_parameters_alone(saved):
    params = make_state(30).params
    restored = restore_params(saved, abstract(params, mesh(2)))
    assert (restored.step, restored.extra) == (30, {"tokens": 3000})
    assert_same(restored.state, params)
    assert restored.state["embed"].sharding.device_set == set(jax.devices()[:2])
    assert_same(restore_params(saved, abstract(params), step=10).state, make_state(10).params)


# How many are kept.


def test_keep_removes_the_oldest_only_after_the_new_one_is_complete(folder, monkeypatch):
    seen = []
    finish = checkpoint_files.complete

    def watch(*args):
        seen.append(checkpoint_files.complete_steps(folder))
        finish(*args)

    monkeypatch.setattr(checkpoint_files, "complete", watch)
    with Checkpoints(folder, keep=2) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, make_state(step), {})
    assert seen == [[], [1], [1, 2], [2, 3]]
    assert names(folder) == ["3", "4"]


def test_keep_at_least_one(folder):
    with pytest.raises(UserError, match="keep=0 checkpoints: allowed are whole numbers from 1"):
        Checkpoints(folder, keep=0)


# Resume: may, must, no.


def test_resume_without_checkpoints(folder):
    assert restore(folder, "may") is None
    assert restore(folder, "no") is None
    with pytest.raises(UserError, match="holds no checkpoint and resume is 'must'"):
        restore(folder, "must")
    with pytest.raises(UserError, match="resume='yes': allowed are may, must, no"):
        restore(folder, "yes")


def test_resume_no_refuses_checkpoints_and_touches_nothing(saved):
    (saved / "40.unfinished").mkdir()
    before = names(saved)
    with pytest.raises(UserError, match=r"newest: step 30\) and resume is 'no'"):
        restore(saved, "no")
    assert names(saved) == before


# Damage.

DAMAGES = {
    "bit flipped in an array": (
        lambda path: faults.flip_bit(faults.array_file(path)),
        "does not match its digest",
    ),
    "bit flipped in the optimizer": (
        lambda path: faults.flip_bit(faults.array_file(path, "rest")),
        "does not match its digest",
    ),
    "bit flipped in the digests": (
        lambda path: faults.flip_bit(path / "digests.json"),
        "does not match its digest|digests.json is damaged|is missing",
    ),
    "file truncated": (lambda path: faults.truncate(faults.array_file(path)), "bytes instead of"),
    "file lost": (lambda path: faults.array_file(path).unlink(), "is missing"),
    "empty folder": (faults.empty_folder, "its folder is empty"),
    "digests lost": (lambda path: (path / "digests.json").unlink(), "digests.json is missing"),
    "digests emptied": (lambda path: (path / "digests.json").write_text(""), "json is damaged"),
    "digests of nothing": (lambda path: (path / "digests.json").write_text("{}"), "is damaged"),
    "another checkpoint": (
        lambda path: (path / "digests.json").write_text('{"step": 1, "files": {}}'),
        "it is the checkpoint of step 1",
    ),
}


@pytest.mark.parametrize(("inject", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoint_falls_back_to_the_one_before(saved, inject, reason, caplog):
    inject(saved / "30")
    restored = restore(saved, "must")
    assert restored.step == 20
    assert_same(restored.state, make_state(20))
    assert f"{saved / '30'} is damaged" in caplog.text
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert re.search(reason, caplog.text)
    assert names(saved) == ["10", "20", "30.broken"]


def test_step_of_a_damaged_checkpoint_is_saved_anew(saved):
    faults.flip_bit(faults.array_file(saved / "30"))
    with Checkpoints(saved, keep=2) as checkpoints:
        checkpoints.restore(abstract(make_state()), "must")
        for step in (30, 40):
            checkpoints.save(step, make_state(step), {})
    assert names(saved) == ["30", "30.broken", "40"]
    assert restore(saved).step == 40


def test_all_damaged_is_an_error_however_often_it_is_tried(saved):
    for step in (10, 20, 30):
        faults.empty_folder(saved / str(step))
    for resume in ("may", "must", "may"):
        with pytest.raises(UserError, match=r"every checkpoint .*step 30: its folder is empty; st"):
            restore(saved, resume)
    with pytest.raises(UserError, match="resume is 'no'"):
        restore(saved, "no")
    with pytest.raises(UserError, match=r"every checkpoint .* is damaged"):
        restore_params(saved, abstract(make_state().params))


def test_damaged_checkpoints_set_aside_are_not_forgotten(saved):
    for step in (10, 20):
        (saved / str(step)).rename(saved / f"{step}.broken")
    faults.flip_bit(faults.array_file(saved / "30"))
    with pytest.raises(UserError, match=r"step 30: params/.*; step 20: set aside earlier; step 10"):
        restore(saved)
    (saved / "30").rename(saved / "30.broken")
    with pytest.raises(UserError, match=r"is damaged \(step 30: set aside earlier; step 20"):
        restore(saved)


def test_foreign_empty_folder_with_a_number_for_a_name(saved):
    (saved / "70").mkdir()
    assert restore(saved).step == 30


def test_parameters_alone_fall_back_and_touch_nothing(saved, caplog):
    faults.flip_bit(faults.array_file(saved / "30"))
    before = names(saved)
    assert restore_params(saved, abstract(make_state().params)).step == 20
    assert "is damaged" in caplog.text
    assert names(saved) == before
    with pytest.raises(UserError, match=r"checkpoint .*/30 is damaged: params/"):
        restore_params(saved, abstract(make_state().params), step=30)


def test_parameters_alone_do_not_need_the_optimizer(saved):
    faults.flip_bit(faults.array_file(saved / "30", "rest"))
    assert restore_params(saved, abstract(make_state().params)).step == 30


def test_parameters_alone_of_no_checkpoint(saved, tmp_path):
    with pytest.raises(UserError, match="no checkpoint of step 15: there are 10, 20, 30"):
        restore_params(saved, {}, step=15)
    with pytest.raises(UserError, match="nowhere holds no checkpoint"):
        restore_params(tmp_path / "nowhere", {})


# Checkpoints that do not fit.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: {**p, "embed": p["embed"].astype(jnp.bfloat16)},
            "params/embed has dtype float32 instead of bfloat16",
        ),
        (
            lambda p: {**p, "embed": jnp.ones((8, 4))},
            r"params/embed has shape \[8, 16\] instead of \[8, 4\]",
        ),
        (lambda p: {**p, "head": p["embed"]}, "params/head is missing"),
        (lambda p: {"embed": p["embed"]}, "params/layers/kernel is not asked for"),
    ],
    ids=["dtype", "shape", "missing", "surplus"],
)
def test_misfit_names_the_keys(saved, change, message):
    state = make_state()
    with pytest.raises(UserError, match=rf"checkpoint .*/30 does not fit.*{message}"):
        restore(saved, "may", state.replace(params=change(state.params)))
    assert names(saved) == ["10", "20", "30"]


def test_misfit_of_the_optimizer_names_the_keys(saved):
    state = make_state()
    with pytest.raises(UserError, match=r"does not fit.*rest/opt/.* and \d+ more"):
        restore(saved, "may", state.replace(opt=optax.adamw(1.0).init(state.params)))
    other_key = state.replace(key=jax.random.key(0, impl="rbg"))
    with pytest.raises(UserError, match="rest/key has dtype key<fry> instead of key<rbg>"):
        restore(saved, "may", other_key)


def test_wrong_calls(folder):
    with Checkpoints(folder, keep=1) as checkpoints:
        with pytest.raises(ValueError, match="no entry 'params'"):
            checkpoints.save(1, {"weights": jnp.ones(1)}, {})
        with pytest.raises(ValueError, match="'params' is one array"):
            checkpoints.save(1, {"params": jnp.ones(1)}, {})
        with pytest.raises(TypeError, match="state entry params/w is no array: 'x'"):
            checkpoints.save(1, {"params": {"w": "x"}}, {})
        with pytest.raises(ValueError, match="not JSON compliant"):
            checkpoints.save(1, make_state(), {"loss": float("nan")})
        checkpoints.save(2, make_state(), {})
        with pytest.raises(ValueError, match="step 2 is not after the newest checkpoint, step 2"):
            checkpoints.save(2, make_state(), {})


def test_plain_orbax_reads_the_items(saved):
    import orbax.checkpoint as ocp

    assert json.loads((saved / "30" / "digests.json").read_text())["step"] == 30
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as plain:
        got = plain.restore(
            saved / "30", args=ocp.args.Composite(params=ocp.args.StandardRestore())
        )
    np.testing.assert_array_equal(got.params["embed"], make_state(30).params["embed"])


def test_a_path_that_could_not_be_read_back_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"\[red\]one/checkpoints: allowed is a path without '\[…\]'"
    ):
        Checkpoints(tmp_path / "[red]one" / "checkpoints", keep=2)
