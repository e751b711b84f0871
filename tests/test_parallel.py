import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from looped_jax import parallel
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.model.boxes import unboxed
from looped_jax.model.lm import LoopedLM
from looped_jax.training.state import (
    abstract_params,
    abstract_state,
    init_params,
    init_state,
    make_optimizer,
    state_shardings,
)
from tests.tiny_runs import tiny_config

BOX = nn.LogicallyPartitioned


def mesh(text="data:2,fsdp:2,tensor:2"):
    return parallel.mesh_from_text(text)


def test_a_mesh_takes_what_is_left():
    assert dict(mesh("data:-1,fsdp:2,tensor:1").shape) == {"data": 4, "fsdp": 2, "tensor": 1}
    assert dict(mesh("tensor:2,data:1,fsdp:1").shape) == {"data": 1, "fsdp": 1, "tensor": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:-1,model:2,tensor:1", "axis 'model'; allowed: each of data, fsdp, tensor once"),
        ("data:-1,data:1,tensor:1", "axis 'data'; allowed"),
        ("data:-1,fsdp:1", "axis 'tensor' is missing"),
        ("data:many,fsdp:1,tensor:1", "size 'many' of data; allowed: a number"),
        ("data:-1,fsdp:-1,tensor:1", "allowed are sizes from 1, and one -1"),
        ("data:-1,fsdp:3,tensor:1", "is for 3 x n devices; there are 8"),
        ("data:16,fsdp:1,tensor:1", "is for 16 devices; there are 8"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        mesh(text)


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (("embed", "other"), (4, 4), "logical axis 'other' is not in the table"),
        (("heads", "mlp"), (4, 4), "collide on mesh axes"),
        (
            ("embed", "mlp"),
            (3, 4),
            "= 3 does not divide over mesh axis fsdp:2; fsdp may be 1 or 3, or",
        ),
    ],
)
def test_axes_that_do_not_fit_the_table_are_refused(names, shape, message):
    with pytest.raises(UserError, match=f"parameter w.*{message}"):
        parallel.parameter_shardings({"w": BOX(jnp.zeros(shape), names)}, mesh())
    with pytest.raises(UserError, match="parameter w has no logical axes"):
        parallel.parameter_shardings({"w": jnp.zeros(shape)}, mesh())


def test_a_batch_has_to_divide():
    parallel.check_batch(mesh(), "data", 8, microbatches=2)
    message = r"data.batch_size = 6 sequences does not divide over data:2 x fsdp:2 = 4 devices$"
    with pytest.raises(UserError, match=message):
        parallel.check_batch(mesh(), "data", 6)
    with pytest.raises(UserError, match=r"= 4 devices x 3 microbatches"):
        parallel.check_batch(mesh(), "data", 8, microbatches=3)


@pytest.mark.parametrize(("rows", "filled"), [(1, 4), (4, 4), (6, 8)])
def test_rows_are_filled_up(rows, filled):
    assert parallel.filled_up(mesh(), rows) == filled


def test_constraints_hold_inside_the_block():
    """Without the mesh or the table flax drops them silently."""
    constrained = lambda x: nn.with_logical_constraint(x, ("batch", "length"))
    x = jnp.zeros((8, 4))
    assert "sharding_constraint" not in str(jax.make_jaxpr(constrained)(x))
    with parallel.active(mesh()):
        assert "sharding_constraint" in str(jax.make_jaxpr(constrained)(x))


def test_parameters_are_the_same_on_every_mesh_and_moments_lie_with_their_parameters(data):
    run = resolve(tiny_config(data.folder))
    optimizer = make_optimizer(run.optimizer.rule)

    def initial(text):
        with parallel.active(mesh(text)):
            return jax.device_get(init_state(run.model, optimizer, mesh(text), 3))

    whole, split = initial("data:8,fsdp:1,tensor:1"), initial("data:2,fsdp:2,tensor:2")
    jax.tree.map(np.testing.assert_array_equal, whole.params, split.params)
    # Norms of the matrices are sums over devices.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), whole, split)
    shardings = state_shardings(run.model, optimizer, mesh())
    qkv = shardings.params["core"]["attn"]["qkv"]["kernel"].spec
    assert qkv == PartitionSpec(None, "fsdp", None, "tensor")
    moments = [
        s.spec
        for path, s in jax.tree_util.tree_leaves_with_path(shardings.optimizer)
        if "momentum" in str(path) and "qkv" in str(path) and "core" in str(path)
    ]
    assert moments == [qkv]


def test_every_axis_of_the_model_stands_in_the_table(data):
    run = resolve(tiny_config(data.folder))
    boxed = jax.eval_shape(lambda: init_params(run.model, 0))
    named = {
        name
        for leaf in jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, BOX))
        for name in leaf.names
    }
    assert named <= set(parallel.LOGICAL_AXES)


def test_activations_are_split_as_the_table_says(data):
    """Rows over data and fsdp, hidden units over tensor; no axis drops out for another's sake."""
    run = resolve(tiny_config(data.folder, ends=1))
    params = unboxed(jax.eval_shape(lambda: init_params(run.model, 0)))
    tokens = jax.ShapeDtypeStruct((8, 16), jnp.int32)
    with parallel.active(mesh()):
        forward = jax.make_jaxpr(lambda p, t: LoopedLM(run.model).apply({"params": p}, t))
        specs = set(constraints(forward(params, tokens).jaxpr))
    rows, table = ("data", "fsdp"), PartitionSpec("tensor", None)
    assert specs == {table, PartitionSpec(rows, None, None), PartitionSpec(rows, None, "tensor")}


def constraints(jaxpr):
    """Specs of all sharding constraints in a jaxpr and what it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "sharding_constraint":
            yield equation.params["sharding"].spec
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from constraints(getattr(value, "jaxpr", value))


def is_jaxpr(value):
    return hasattr(value, "eqns")


def test_rows_of_a_process_are_those_of_its_devices():
    on = mesh("data:4,fsdp:1,tensor:2")
    np.testing.assert_array_equal(parallel.local_rows(on, 8), np.arange(8))
    batch = {"tokens": np.arange(24).reshape(8, 3)}
    placed = parallel.global_batch(batch, on)["tokens"]
    np.testing.assert_array_equal(placed, batch["tokens"])
    assert placed.sharding.spec == parallel.rows(on).spec


@pytest.mark.parametrize(
    ("here", "expected"),
    [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 5, 6, 7], [4, 5, 6, 7]), ([0, 2, 5], [0, 1, 2, 3, 4, 5])],
)
def test_each_process_feeds_the_rows_that_it_holds(monkeypatch, here, expected):
    """Devices of other processes are simulated: 8 rows over data:4, twice for tensor:2."""
    on = mesh("data:4,fsdp:1,tensor:2")
    everywhere = parallel.rows(on).devices_indices_map((8,))
    held = {device: index for device, index in everywhere.items() if device.id in here}
    monkeypatch.setattr(
        jax.sharding.NamedSharding, "addressable_devices_indices_map", lambda *_: held
    )
    assert parallel.local_rows(on, 8).tolist() == expected


def test_what_a_mesh_would_split_has_to_divide(data):
    sizes = {"model.heads": ("heads", 3), "model.width": ("embed", 4)}
    message = (
        r"^model.heads = 3 does not divide over mesh axis tensor:2; tensor may be 1 or 3, or "
        r"model.heads 2 or 4$"
    )
    with pytest.raises(UserError, match=message):
        parallel.check_sizes(mesh(), sizes)
    parallel.check_sizes(mesh("data:8,fsdp:1,tensor:1"), sizes)

    config = tiny_config(data.folder)
    config.model.width, config.model.head_dim = 24, 8
    run = resolve(config)
    with pytest.raises(UserError, match=message):
        abstract_state(run.model, make_optimizer(run.optimizer.rule), mesh())
    with pytest.raises(UserError, match=r"model.heads = 3 does not"):
        abstract_params(run.model, mesh())


def test_what_a_loop_sums_over_rows_is_summed_over_devices_once():
    on = mesh("data:4,fsdp:1,tensor:1")
    x_BD, w_DD = jax.random.normal(jax.random.key(0), (8, 4)), 0.1 * jnp.ones((4, 4))

    def gradient(w_DD, x_BD, turns):
        def loss(w_DD):
            turn = lambda h_BD, _: (jnp.tanh(h_BD @ w_DD), None)
            return jnp.mean(jax.lax.scan(turn, x_BD, None, 3)[0])

        return jax.grad(loss)(w_DD) * turns

    means = jax.jit(lambda w, x: parallel.mean_over_data(on, gradient, (w,), (x, jnp.float32(2))))
    x_BD = jax.device_put(x_BD, parallel.rows(on))
    program = means.lower(w_DD, x_BD).compile().as_text()
    assert len(re.findall(r" all-reduce\(", program)) == 1
    expected = gradient(w_DD, jax.device_get(x_BD), 2)
    np.testing.assert_allclose(means(w_DD, x_BD), expected, rtol=1e-5)
    assert not parallel.only_data_splits(mesh())
