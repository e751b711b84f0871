"""The whole model: causality, seams against the whole, depths static, traced and per sequence."""

import dataclasses
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model.lm import LoopedLM
from tests.model.tiny import INJECTIONS, READOUT, SANDWICH, random_params, tiny, with_injection

B, T = 3, 8
SMALL = {
    "width": 16,
    "head_dim": 8,
    "mlp_hidden": 32,
    "prelude_layers": 0,
    "core_layers": 1,
    "coda_layers": 0,
}
FAMILIES = {
    **{name: with_injection(name, **SMALL) for name in INJECTIONS},
    "sandwich": tiny(**SANDWICH | SMALL),
    "readout": tiny(**READOUT | SMALL),
}
TOKENS = jax.random.randint(jax.random.key(7), (B, T), 0, 40)
KEYS = {name: jax.random.key(i) for i, name in enumerate(("params", "state", "dropout"))}


def assert_trees_close(actual, expected, relative=1e-5):
    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=relative * max(1e-3, np.abs(b).max()))

    jax.tree.map(close, actual, expected)


def states_by_hand(model, params, input_BTD, recurrences, rngs=KEYS):
    run = lambda method, *args: model.apply({"params": params}, *args, method=method, rngs=rngs)
    state = run("initial_state", input_BTD)
    for index in range(recurrences):
        state = run("recur", state, input_BTD, index)
    return state


@pytest.mark.parametrize("family", FAMILIES)
def test_loop_equals_recurrences_by_hand(family):
    """Value and gradient, parameters and input, with r traced."""
    model = LoopedLM(FAMILIES[family])
    params = random_params(model.config)
    input_BTD = jax.random.normal(jax.random.key(5), (B, T, 16))

    def looped(params, input_BTD, recurrences):
        run = lambda method, *args: model.apply({"params": params}, *args, method=method, rngs=KEYS)
        state = run("initial_state", input_BTD)
        return jnp.sum(jnp.sin(run("recur_all", state, input_BTD, recurrences)))

    def by_hand(params, input_BTD):
        return jnp.sum(jnp.sin(states_by_hand(model, params, input_BTD, 2)))

    gradients = lambda f: jax.jit(jax.value_and_grad(f, argnums=(0, 1)))
    actual = gradients(looped)(params, input_BTD, jnp.int32(2))
    assert_trees_close(actual, gradients(by_hand)(params, input_BTD), relative=1e-4)


@pytest.mark.parametrize("family", ["linear", "hyperconnect", "sandwich", "readout"])
def test_causal(family):
    """The gradient of a position with respect to later inputs is exactly zero."""
    model = LoopedLM(FAMILIES[family])
    params = random_params(model.config)

    def output(x_BTD):
        input_BTD = model.apply({"params": params}, x_BTD, method="prelude")
        state = states_by_hand(model, params, input_BTD, 2)
        return model.apply({"params": params}, state, method="coda")

    @jax.jit
    def gradients(x_BTD):
        _, pullback = jax.vjp(output, x_BTD)
        one_position = jnp.broadcast_to(jnp.eye(T)[:, None, :, None], (T, 1, T, 16))
        return jax.vmap(pullback)(one_position)[0][:, 0]  # (output, input, D)

    x_BTD = jax.random.normal(jax.random.key(5), (1, T, 16))
    reach = jnp.abs(gradients(x_BTD)).max(-1)
    assert (jnp.triu(reach, 1) == 0).all()
    assert (reach[jnp.tril_indices(T)] > 0).all()


@pytest.mark.parametrize(
    ("family", "window"), [("linear", 0), ("linear", 2), ("hyperconnect", 0), ("sandwich", 2)]
)
def test_per_sequence_depths_equal_each_sequence_alone(family, window):
    model = LoopedLM(dataclasses.replace(FAMILIES[family], backprop_recurrences=window))
    params = random_params(model.config)
    state = None
    if family == "sandwich":
        state = jax.random.normal(jax.random.key(8), (B, T, 16))

    def loss(params, tokens, depth, state):
        logits = model.apply({"params": params}, tokens, depth, state)
        return jnp.sum(jnp.sin(logits)), logits

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    depths = (1, 3, 2)
    (_, logits), gradient = step(params, TOKENS, jnp.asarray(depths, jnp.int32), state)
    alone = [
        step(params, TOKENS[b : b + 1], jnp.int32(depth), None if state is None else state[b, None])
        for b, depth in enumerate(depths)
    ]
    assert_trees_close(logits, jnp.concatenate([logits for (_, logits), _ in alone]), 2e-5)
    total = jax.tree.map(lambda *leaves: sum(leaves), *[gradient for _, gradient in alone])
    assert_trees_close(gradient, total, 1e-4)


def test_one_compilation_for_every_depth_and_deeper_is_different():
    model = LoopedLM(FAMILIES["linear"])
    params = random_params(model.config)
    run = jax.jit(lambda r: model.apply({"params": params}, TOKENS, r))
    logits = [run(jnp.int32(r)) for r in (1, 2, 5, 8)]
    assert run._cache_size() == 1
    assert_trees_close(logits[1], model.apply({"params": params}, TOKENS, 2))
    assert all(jnp.abs(a - b).max() > 1e-2 for a, b in itertools.pairwise(logits))


def test_trajectory_ends_where_the_loop_ends():
    model = LoopedLM(FAMILIES["hyperconnect"])
    params = random_params(model.config)
    input_BTD = jax.random.normal(jax.random.key(5), (B, T, 16))
    run = lambda method, *args: model.apply({"params": params}, *args, method=method)
    state = run("initial_state", input_BTD)
    states = run("trajectory", state, input_BTD, 3)
    assert states.shape == (3, 2, B, T, 16)
    for r in (1, 3):
        assert_trees_close(states[r - 1], run("recur_all", state, input_BTD, r))


def test_remat_changes_nothing():
    config = FAMILIES["linear"]
    params = random_params(config)

    def gradient(remat):
        model = LoopedLM(dataclasses.replace(config, remat=remat))
        loss = lambda params: jnp.sum(jnp.sin(model.apply({"params": params}, TOKENS)))
        return jax.jit(jax.value_and_grad(loss))(params)

    assert_trees_close(gradient("layer"), gradient("none"))


def test_bfloat16_compute_is_close_to_float32():
    config = tiny(**SMALL)
    params = random_params(config)
    low = LoopedLM(dataclasses.replace(config, compute_dtype="bfloat16"))
    exact = jax.jit(LoopedLM(config).apply)({"params": params}, TOKENS)
    rounded = jax.jit(low.apply)({"params": params}, TOKENS)
    assert rounded.dtype == jnp.float32
    assert (
        jax.eval_shape(lambda: low.apply({"params": params}, TOKENS, method="hidden")).dtype
        == jnp.bfloat16
    )
    error = jnp.abs(rounded - exact).max() / jnp.abs(exact).max()
    assert 0 < error < 0.1
    gradient = jax.eval_shape(jax.grad(lambda p: jnp.sum(low.apply({"params": p}, TOKENS))), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_dropout_is_a_function_of_its_key_and_off_in_evaluation():
    config = tiny(**READOUT | SMALL, dropout=0.5)
    train, evaluate = LoopedLM(config, deterministic=False), LoopedLM(config)
    params = random_params(config)
    run = jax.jit(
        lambda model, seed: model.apply(
            {"params": params}, TOKENS, rngs={"dropout": jax.random.key(seed)}
        ),
        static_argnums=0,
    )
    assert (run(train, 1) == run(train, 1)).all()
    assert (run(train, 1) != run(train, 2)).any()
    assert (run(evaluate, 1) == run(evaluate, 2)).all()
    without = LoopedLM(dataclasses.replace(config, dropout=0.0))
    assert (run(evaluate, 1) == run(without, 1)).all()


def test_dropout_differs_between_recurrences():
    """Each recurrence drops other units: the same state is updated differently."""
    config = tiny(**READOUT | SMALL, dropout=0.5)
    model = LoopedLM(config, deterministic=False)
    params = random_params(model.config)
    same = jnp.ones((1, 1, 16))
    frozen = jax.tree.map(jnp.zeros_like, params["core"]["attn"])
    params["core"]["attn"] = frozen  # the update is the MLP's alone
    states = model.apply(
        {"params": params}, same, same, 2, method="trajectory",
        rngs={"dropout": jax.random.key(0)},
    )  # fmt: skip
    kept = [states[0] - same == 0, states[1] - states[0] == 0]
    assert (kept[0] != kept[1]).any()


def test_noise_needs_a_key_and_has_the_configured_spread():
    config = tiny(**SANDWICH | {"width": 256, "heads": 16})
    model = LoopedLM(config)
    state = lambda rngs: model.apply({}, jnp.zeros((8, 64, 256)), method="initial_state", rngs=rngs)
    drawn = state({"state": jax.random.key(0)})
    # A standard normal cut at ±3 has standard deviation 0.9866.
    assert jnp.std(drawn) == pytest.approx(0.4 * 0.9866, rel=0.01)
    assert jnp.abs(drawn).max() <= 3 * 0.4
    with pytest.raises(Exception, match='needs PRNG for "state"'):
        state({})


def test_refused_depths_and_lengths():
    model = LoopedLM(FAMILIES["hyperconnect"])
    params = random_params(model.config)
    run = lambda tokens, r: model.apply({"params": params}, tokens, r)
    with pytest.raises(ValueError, match=r"recurrences = 0; allowed: 1 to 3 \(rows of the lane"):
        run(TOKENS, 0)
    with pytest.raises(ValueError, match=r"recurrences = 4; allowed: 1 to 3 \(rows of the lane"):
        run(TOKENS, 4)
    with pytest.raises(ValueError, match=r"sequence of 17 tokens; allowed: model\.max_length = 16"):
        run(jnp.zeros((1, 17), jnp.int32), 1)
    free = LoopedLM(FAMILIES["linear"])
    with pytest.raises(ValueError, match="recurrences = 0; allowed: 1 or more"):
        free.apply({"params": random_params(free.config)}, TOKENS, 0)


def test_initial_parameters():
    config = tiny(width=64, heads=4, mlp_hidden=256, vocab_size=1000)
    params = nn.unbox(jax.jit(LoopedLM(config).init)(KEYS, TOKENS)["params"])

    def assert_uniform(kernel, fan_in):
        limit = (3 / fan_in) ** 0.5
        assert jnp.abs(kernel).max() <= limit
        assert jnp.abs(kernel).max() > 0.99 * limit
        assert jnp.std(kernel) == pytest.approx(fan_in**-0.5, rel=0.02)
        assert jnp.mean(kernel) == pytest.approx(0, abs=0.05 * limit)

    for stack in ("prelude", "core", "coda"):
        for name in ("attn/qkv", "attn/out", "mlp/up"):
            block, matrix = name.split("/")
            assert_uniform(params[stack][block][matrix]["kernel"], 64)
        assert_uniform(params[stack]["mlp"]["down"]["kernel"], 256)
    # Layers of a stack differ.
    assert (
        params["core"]["mlp"]["up"]["kernel"][0] != params["core"]["mlp"]["up"]["kernel"][1]
    ).any()
    injection = params["injection"]["kernel"]
    assert (injection == jnp.concatenate([jnp.eye(64), jnp.zeros((64, 64))])).all()
    assert jnp.std(params["embed"]["embedding"]) == pytest.approx(1.0, rel=0.01)
    assert jnp.std(params["head"]["kernel"]) == pytest.approx(0.001, rel=0.01)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if path[-1].key == "scale":
            assert (leaf == 1).all()


def test_initial_parameters_of_the_normal_family():
    config = tiny(**READOUT | {"width": 64, "heads": 4, "mlp_hidden": 256})
    params = nn.unbox(jax.jit(LoopedLM(config).init)(KEYS, TOKENS)["params"])
    for leaf in (params["core"]["attn"]["qkv"], params["core"]["mlp"]["down"]):
        assert jnp.std(leaf["kernel"]) == pytest.approx(0.02, rel=0.02)
    assert jnp.std(params["embed"]["embedding"]) == pytest.approx(0.02, rel=0.03)
    assert "head" not in params


def test_parameters_do_not_depend_on_the_number_of_recurrences():
    draw = lambda r: jax.jit(LoopedLM(dataclasses.replace(FAMILIES["linear"], recurrences=r)).init)(
        KEYS, TOKENS
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), draw(1), draw(4)))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_names_its_axes(family):
    """One logical axis name for every dimension, no name twice in one parameter."""
    boxed = jax.eval_shape(LoopedLM(FAMILIES[family]).init, KEYS, TOKENS)["params"]
    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)
    for box in jax.tree.leaves(boxed, is_leaf=is_box):
        assert is_box(box)
        assert len(box.names) == box.value.ndim
        assert len(set(box.names)) == len(box.names)
        assert None not in box.names
