"""The model computes what the published implementations compute (numbers in tests/golden)."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model.lm import LoopedLM
from tests.golden import isodepth_names, readout_names, sandwich_names
from tests.golden.readout_numpy import loop_logits
from tests.model.tiny import READOUT, SANDWICH, tiny, with_injection

GOLDEN = Path(__file__).parents[1] / "golden"


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        arrays = dict(arrays)
    return arrays, arrays["tokens"][:, :-1], arrays["tokens"][:, 1:]


def cross_entropy(logits_BTV, targets_BT):
    nats = jax.nn.logsumexp(logits_BTV, -1)
    return jnp.mean(nats - jnp.take_along_axis(logits_BTV, targets_BT[..., None], -1)[..., 0])


def assert_close(actual, expected, relative=1e-5):
    """Largest difference against the largest expected value."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max()
    assert scale > 0
    assert np.abs(np.asarray(actual) - expected).max() <= relative * scale


def assert_gradients_close(actual, expected):
    actual = dict(jax.tree_util.tree_leaves_with_path(actual))
    expected = dict(jax.tree_util.tree_leaves_with_path(expected))
    assert actual.keys() == expected.keys()
    for path, gradient in expected.items():
        if np.abs(gradient).max() > 0:
            assert_close(actual[path], gradient, relative=1e-4)
        else:
            assert np.abs(actual[path]).max() == 0, path


def assert_same_tree(model, tokens_BT, params):
    """The published parameters are all parameters of this model, shapes included."""
    rngs = {"params": jax.random.key(0), "state": jax.random.key(0)}
    ours = jax.eval_shape(lambda: nn.unbox(model.init(rngs, tokens_BT)["params"]))
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, params)


ISODEPTH = {
    "linear": with_injection("linear"),
    "linear_bptt2": with_injection("linear", backprop_recurrences=2),
    "linear_bptt1": with_injection("linear", backprop_recurrences=1),
    "additive": with_injection("additive"),
    "passthrough": with_injection("passthrough"),
    "hyperconnect": with_injection("hyperconnect"),
    "noloop": with_injection(
        "passthrough", prelude_layers=0, core_layers=4, coda_layers=0, recurrences=1
    ),
}


@pytest.mark.parametrize("depth", ["static", "traced"])
@pytest.mark.parametrize("variant", ISODEPTH)
def test_isodepth(variant, depth):
    arrays, tokens, targets = load(f"isodepth_{variant}")
    model, params = LoopedLM(ISODEPTH[variant]), isodepth_names.to_params(arrays)
    assert_same_tree(model, tokens, params)

    def loss(params, recurrences):
        logits = model.apply({"params": params}, tokens, recurrences)
        return cross_entropy(logits, targets), logits

    recurrences = model.config.recurrences
    step = jax.value_and_grad(loss, has_aux=True)
    if depth == "traced":
        (nats, logits), gradients = jax.jit(step)(params, jnp.int32(recurrences))
    else:
        (nats, logits), gradients = jax.jit(lambda params: step(params, recurrences))(params)
    assert_close(logits, arrays["logits"])
    assert_close(nats, arrays["loss"])
    assert_gradients_close(gradients, isodepth_names.to_params(arrays, "grad/"))


def test_sandwich_at_every_depth_and_truncated():
    arrays, tokens, targets = load("huginn_elastic")
    config = tiny(**SANDWICH, embedding_scale=float(arrays["embed_scale"]), backprop_recurrences=3)
    assert config.rope_base == arrays["rope_base"]
    model, params = LoopedLM(config), sandwich_names.to_params(arrays)
    assert_same_tree(model, tokens, params)

    def loss(params, recurrences):
        run = lambda method, *args: model.apply({"params": params}, *args, method=method)
        input_BTD = run("prelude", run("embed", tokens))
        state = run("recur_all", arrays["initial_state"], input_BTD, recurrences)
        logits = run("readout", run("coda", state))
        # The norm on the last state is the readout's, and the published latents are after it.
        latents = run("readout_input", state)
        return cross_entropy(logits, targets), (logits, latents)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for recurrences in (1, 2, 4, 8):
        (nats, (logits, latents)), gradients = step(params, jnp.int32(recurrences))
        assert_close(nats, arrays[f"loss/steps{recurrences}"])
        assert_close(logits, arrays[f"logits/steps{recurrences}"])
        assert_close(latents, arrays[f"latents/steps{recurrences}"])
        if recurrences == 4:
            assert_close(nats, arrays["loss/nograd1_grad3"])
            assert_gradients_close(gradients, sandwich_names.to_params(arrays, "grad/"))


@pytest.mark.parametrize(
    ("condition", "readout_norm"),
    [
        ("perloop_rmsnorm", "every"),
        ("perloop_raw", "none"),
        ("perloop_final_norm", "last"),
        ("terminal_rmsnorm_penalty", "every"),
    ],
)
def test_readout_at_every_loop(condition, readout_norm):
    arrays, tokens, targets = load(f"readout_{condition}")
    model = LoopedLM(tiny(**READOUT, readout_norm=readout_norm))
    params = readout_names.to_params(arrays)
    assert_same_tree(model, tokens, params)
    loops = model.config.recurrences

    def loss(params):
        run = lambda method, *args, **kwargs: model.apply(
            {"params": params}, *args, method=method, **kwargs
        )
        input_BTD = run("prelude", run("embed", tokens))
        states = run("trajectory", run("initial_state", input_BTD), input_BTD, loops)
        logits = jnp.stack(
            [run("readout", run("coda", states[k]), last=k == loops - 1) for k in range(loops)]
        )
        nats = jnp.stack([cross_entropy(logits[k], targets) for k in range(loops)])
        mean_square = jnp.mean(jnp.square(states), axis=(1, 2, 3))
        if condition == "terminal_rmsnorm_penalty":
            total = nats[-1] + 0.01 * jnp.mean(mean_square)
        else:
            total = jnp.mean(nats)
        mean_norm = jnp.mean(jnp.linalg.norm(states, axis=-1), axis=(1, 2))
        return total, (logits, nats, mean_norm, mean_square)

    (total, measured), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert_close(total, arrays["loss"])
    names = ("loop_logits", "loop_losses", "loop_mean_norm", "loop_mean_square")
    for name, value in zip(names, measured, strict=True):
        assert_close(value, arrays[name])
    assert_gradients_close(gradients, readout_names.to_params(arrays, "grad/"))


def test_norm_between_loops_is_after_the_readout_as_published():
    """The published loop decodes the state and normalises it then, with a scale of its own.

    The reference is held to the golden logits without that norm first.
    """
    arrays, tokens, _ = load("readout_perloop_rmsnorm")
    published = {
        name.removeprefix("param/"): array
        for name, array in arrays.items()
        if name.startswith("param/")
    }
    assert_close(loop_logits(published, tokens, heads=2, loops=4), arrays["loop_logits"])
    scale_D = 1 + 0.5 * np.random.default_rng(0).standard_normal(32).astype(np.float32)
    expected = loop_logits(published | {"loop_norm.weight": scale_D}, tokens, heads=2, loops=4)
    params = readout_names.to_params(arrays) | {"state_norm": {"scale": scale_D}}

    found = {}
    for order in ("between", "every"):
        model = LoopedLM(tiny(**READOUT | {"state_norm": order}))
        found[order] = jax.jit(
            lambda params, model=model: jnp.stack(
                [model.apply({"params": params}, tokens, loops) for loops in range(1, 5)]
            )
        )(params)
    assert_close(found["between"], expected)
    difference = np.abs(found["every"] - expected).max() / np.abs(expected).max()
    assert difference > 0.05
