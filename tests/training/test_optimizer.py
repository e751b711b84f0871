"""The optimisers against the published numbers, a second route, and the sphere's invariants."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from looped_jax import parallel
from looped_jax.errors import UserError
from looped_jax.training.optimizer import (
    POLAR_EXPRESS,
    Schedule,
    adamw,
    group_of,
    match_parameters,
    muonh_adamw,
    newton_schulz,
    orthogonalize,
    parameters_by_group,
)
from looped_jax.training.transfer import Transfer
from tests.golden.isodepth_names import to_params

GOLDEN = Path(__file__).parents[1] / "golden" / "isodepth_optimizer.npz"
RATES = {"matrix": 0.02, "embedding": 0.1, "unembedding": 0.01, "norm": 0.02, "lane": 0.03}
D, F, V, L = 8, 16, 24, 2


def schedule(
    total_steps=10, warmup_steps=0, warmdown_share=1.0, final_fraction=0.1, peak_rates=RATES
):
    return Schedule.of(
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        warmdown_share=warmdown_share,
        final_fraction=final_fraction,
        peak_rates=peak_rates,
    )


PUBLISHED = muonh_adamw(momentum=0.95, b1=0.8, b2=0.95, eps=1e-10)
UPDATE = jax.jit(PUBLISHED.update)  # compiled once for the trees of `model_params`


def plain_adamw(**changes):
    knobs = {
        "b1": 0.9,
        "b2": 0.95,
        "eps": 1e-8,
        "decay": 0.1,
        "decayed_groups": ("matrix", "embedding", "unembedding"),
        "clip_norm": 1.0,
    }
    return adamw(**(knobs | changes))


def model_params(seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))
    layers = {
        "attn_norm": {"scale": normal(L, D)},
        "attn": {"qkv": {"kernel": normal(L, D, 3, D)}, "out": {"kernel": normal(L, D, D)}},
        "mlp_norm": {"scale": normal(L, D)},
        "mlp": {"gate_up": {"kernel": normal(L, D, 2, F)}, "down": {"kernel": normal(L, F, D)}},
    }
    return {
        "embed": {"embedding": normal(V, D)},
        "core": layers,
        "injection": {"kernel": normal(2 * D, D)},
        "lanes": {"alpha": normal(3, 2), "mixing": normal(3, 2, 2)},
        "final_norm": {"scale": normal(D)},
        "head": {"kernel": normal(D, V)},
    }


def run(params, steps, schedule, optimizer=PUBLISHED, update=UPDATE):
    state = optimizer.init(params)
    for step in range(steps):
        updates, state = update(model_params(100 + step), state, params, schedule=schedule)
        params = optax.apply_updates(params, updates)
    return params


def separate_matrices(params):
    """Every matrix of the tree, by name: layers and fused parts apart."""
    found = {"injection": params["injection"]["kernel"]}
    attn, mlp = params["core"]["attn"], params["core"]["mlp"]
    for layer in range(L):
        for i, part in enumerate("qkv"):
            found[f"{part} {layer}"] = attn["qkv"]["kernel"][layer, :, i]
        for i, part in enumerate(("gate", "up")):
            found[f"{part} {layer}"] = mlp["gate_up"]["kernel"][layer, :, i]
        found[f"out {layer}"] = attn["out"]["kernel"][layer]
        found[f"down {layer}"] = mlp["down"]["kernel"][layer]
    return {name: np.asarray(matrix, np.float64) for name, matrix in found.items()}


def test_three_published_steps():
    with np.load(GOLDEN) as file:
        arrays = dict(file)
    transfer = Transfer(
        d_ref=int(arrays["d_ref"]),
        batch_ref=1,
        tokens_ref=1,
        width_exponent=-0.5,
        data_exponent=-0.32,
        matrix_batch_exponent=0.558,
        adamw_batch_exponent=0.558,
    )
    base = {name: float(arrays[f"lr/{name}"]) for name in RATES if name != "lane"}
    d_model = int(arrays["d_model"])
    rates = transfer.scale(base, d_model=d_model, batch_tokens=1, tokens=1).rates
    # The multipliers 1, 0.75, 0.5 are those of a run of four steps that ends at 0.
    plan = schedule(total_steps=4, final_fraction=0.0, peak_rates=rates)
    multipliers = [plan.multiplier(t) for t in range(3)]
    np.testing.assert_allclose(multipliers, arrays["lr_multiplier"], rtol=1e-7)

    params = jax.tree.map(jnp.asarray, to_params(arrays, "step0/"))
    state = PUBLISHED.init(params)
    start = jax.tree.leaves(params)
    for step in (1, 2, 3):
        grads = to_params(arrays, f"grad{step}/")
        updates, state = UPDATE(grads, state, params, schedule=plan)
        params = optax.apply_updates(params, updates)
        expected = jax.tree_util.tree_leaves_with_path(to_params(arrays, f"step{step}/"))
        for (path, b), a, s in zip(expected, jax.tree.leaves(params), start, strict=True):
            name = f"step {step} {jax.tree_util.keystr(path)}"
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max(), err_msg=name)
            # The distance travelled as well, so that a small rate cannot hide an error.
            atol = 3e-4 * np.abs(b - s).max()
            np.testing.assert_allclose(a - s, b - s, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("warmup", "share", "final"),
    [(0, 1.0, 0.1), (0, 0.4, 0.0), (3, 0.5, 0.1), (4, 0.8, 0.2), (3, 1.0, 0.1), (2, 0.0, 0.1)],
    ids=["decay", "plateau", "trapezoid", "no plateau", "overlap", "constant"],
)
def test_schedules_count_as_the_published_code(warmup, share, final):
    """Warm-up and warm-down of arXiv:2604.21106 in its own words, over a run of 20 steps."""
    plan = schedule(20, warmup, share, final)
    warmdown = round(share * 20)
    for t in range(20):
        left = 20 - t
        if t < warmup:
            expected = (t + 1) / warmup
        elif left >= warmdown:
            expected = 1.0
        else:
            expected = left / warmdown + (1 - left / warmdown) * final
        assert float(plan.multiplier(t)) == pytest.approx(expected, rel=1e-6), t


def test_muonh_matches_a_plain_loop_over_matrices():
    """Two steps against numpy in float64 on one matrix at a time."""
    params, momentum = model_params(), 0.95
    actual = separate_matrices(run(params, 2, schedule()))

    def orthogonal(x):
        tall = x.shape[0] > x.shape[1]
        x = (x.T if tall else x) / (1.02 * np.linalg.norm(x) + 1e-6)
        for a, b, c in POLAR_EXPRESS:
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if tall else x

    gradients = [separate_matrices(model_params(100 + step)) for step in range(2)]
    for name, weight in separate_matrices(params).items():
        radius, moment = np.linalg.norm(weight), np.zeros_like(weight)
        for step in range(2):
            gradient = gradients[step][name]
            moment = momentum * moment + (1 - momentum) * gradient
            direction = orthogonal(momentum * moment + (1 - momentum) * gradient)
            rate = RATES["matrix"] * (1 - 0.9 * step / 10)
            weight = weight - rate * radius * direction / np.linalg.norm(direction)
            weight *= radius / np.linalg.norm(weight)
        np.testing.assert_allclose(actual[name], weight, atol=3e-5 * radius, err_msg=name)


def test_every_matrix_keeps_its_norm():
    params = model_params()
    after = separate_matrices(run(params, 50, schedule(50)))
    for name, before in separate_matrices(params).items():
        norm = np.linalg.norm(before)
        np.testing.assert_allclose(np.linalg.norm(after[name]), norm, rtol=1e-6, err_msg=name)
        assert np.linalg.norm(after[name] - before) > 0.1 * norm, name


@pytest.mark.parametrize("shape", [(3, 8, 32), (3, 32, 8), (2, 3, 16, 16)])
def test_singular_values_come_near_one(shape):
    x = newton_schulz(jax.random.normal(jax.random.key(0), shape))
    values = np.linalg.svd(np.asarray(x), compute_uv=False)
    # The slowest singular values of square matrices are still on their way after five steps.
    assert 0.8 < np.median(values) < 1.2
    assert values.max() < 1.2


def test_zero_gradients_leave_finite_weights():
    params = model_params()
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = UPDATE(zeros, PUBLISHED.init(params), params, schedule=schedule())
    for leaf in jax.tree.leaves(updates):
        np.testing.assert_allclose(leaf, 0.0, atol=1e-6)


def test_groups_train_at_their_own_rates():
    params = model_params()
    still = dict.fromkeys(RATES, 0.0)
    for group in RATES:
        after = run(params, 1, schedule(peak_rates=still | {group: 0.1}))
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path(after), jax.tree.leaves(params), strict=True
        ):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            moved = float(jnp.abs(a - b).max())
            assert (moved > 1e-3) == (group_of(name) == group), (name, group, moved)


@pytest.mark.parametrize("optimizer", [PUBLISHED, plain_adamw()], ids=["muonh", "adamw"])
def test_one_compiled_step_serves_every_schedule(optimizer):
    params, grads = model_params(), model_params(1)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    rates = RATES | {"all": 1e-2}
    slower = {group: rate / 3 for group, rate in rates.items()}
    plans = schedule(1_000, 0, 1.0, 0.1, rates), schedule(20, 5, 0.5, 0.0, slower)
    updates, _ = update(grads, state, params, schedule=plans[0])
    compiled = update._cache_size()
    slow, _ = update(grads, state, params, schedule=plans[1])
    assert update._cache_size() == compiled
    assert not np.allclose(updates["head"]["kernel"], slow["head"]["kernel"])
    fixed = jax.jit(lambda g, s, p: optimizer.update(g, s, p, schedule=plans[1]))
    for a, b in zip(
        jax.tree.leaves(slow), jax.tree.leaves(fixed(grads, state, params)[0]), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_schedule():
    rate = lambda plan, step: float(plan.rates(jnp.int32(step))["matrix"])
    decay = schedule(100)
    assert [rate(decay, t) for t in (0, 50, 100)] == pytest.approx([0.02, 0.011, 0.002])
    warm = schedule(100, 20, 0.8)
    assert [rate(warm, t) for t in (0, 9, 19, 20)] == pytest.approx([0.001, 0.01, 0.02, 0.02])
    assert [rate(warm, t) for t in (60, 100)] == pytest.approx([0.011, 0.002])
    constant = schedule(100, 0, 0.0)
    assert [rate(constant, t) for t in (0, 99)] == pytest.approx([0.02, 0.02])


def test_plain_adamw_equals_optax():
    params, rates = model_params(), {"all": 0.01}
    decayed = {
        "matrix": True,
        "embedding": True,
        "unembedding": True,
        "norm": False,
        "lane": False,
    }
    mask = lambda tree: jax.tree_util.tree_map_with_path(
        lambda path, _: decayed[group_of(jax.tree_util.keystr(path, simple=True, separator="/"))],
        tree,
    )
    reference = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            lambda t: 0.01 * (1 - 0.9 * t / 10), 0.9, 0.95, 1e-8, weight_decay=0.1, mask=mask
        ),
    )
    expected, state = params, reference.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for step in range(3):
            gradients = model_params(100 + step)
            updates, state = jax.jit(reference.update)(gradients, state, expected)
            expected = optax.apply_updates(expected, updates)
    after = lambda optimizer: run(
        params, 3, schedule(peak_rates=rates), optimizer, jax.jit(optimizer.update)
    )
    actual = after(plain_adamw())
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    unclipped = after(plain_adamw(clip_norm=None))
    assert not np.allclose(unclipped["head"]["kernel"], actual["head"]["kernel"], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("embed/embedding", "embedding"),
        ("positions/embedding", "embedding"),
        ("head/kernel", "unembedding"),
        ("embed_norm/scale", "norm"),
        ("state_norm/scale", "norm"),
        ("coda/mlp_post_norm/scale", "norm"),
        ("prelude/attn/qkv/kernel", "matrix"),
        ("core/mlp/gate_up/kernel", "matrix"),
        ("injection/kernel", "matrix"),
        ("injection/log_decay", "lane"),
        ("injection/bias", "bias"),
        ("core/attn/qk_bias", "bias"),
        ("lanes/alpha", "lane"),
    ],
)
def test_groups(path, group):
    assert group_of(path) == group


def test_groups_hold_every_parameter_once():
    counts = parameters_by_group(model_params())
    assert sum(counts.values()) == sum(x.size for x in jax.tree.leaves(model_params()))
    assert counts["lane"] == 3 * 2 + 3 * 2 * 2
    assert "bias" not in counts


def test_split_over_devices_equals_one_device():
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    split = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    params, grads, plan = model_params(), model_params(1), schedule()
    specs = jax.tree.map(
        lambda x: split(*[None] * (x.ndim - 1), "model") if x.shape[-1] % 8 == 0 else split(),
        params,
    )
    shapes = jax.eval_shape(PUBLISHED.init, params)
    state_specs = match_parameters(shapes, params, specs, split())
    init = jax.jit(PUBLISHED.init, out_shardings=state_specs)
    step = jax.jit(PUBLISHED.update, out_shardings=(specs, state_specs))
    spread = jax.device_put(params, specs)
    state = init(spread)
    moments = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if "momentum" in jax.tree_util.keystr(path)
    ]
    assert len(moments) == 5
    assert not any(leaf.sharding.is_fully_replicated for leaf in moments)
    actual, _ = step(jax.device_put(grads, specs), state, spread, schedule=plan)
    expected, _ = UPDATE(grads, PUBLISHED.init(params), params, schedule=plan)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("coda", "share"), [(2, 1), (3, 2)])
def test_devices_share_the_matrices(coda, share):
    """8 and 9 matrices in two stacks on 8 devices; of 9, no device has more than 2."""
    draw = lambda seed, n: jax.random.normal(jax.random.key(seed), (n, 24, 40))
    kernels = {
        name: {"mlp": {"up": {"kernel": draw(n, n)}}} for name, n in (("core", 6), ("coda", coda))
    }
    with parallel.active(parallel.mesh_from_text("data:8,fsdp:1,tensor:1")):
        compiled = jax.jit(orthogonalize).lower(kernels).compile()
    products = re.findall(r"= f32\[(?:(\d+),)?24,24\]\S* dot\(", compiled.as_text())
    assert products
    assert {int(count or 1) for count in products} == {share}
    for name, stack in compiled(kernels).items():
        alone = newton_schulz(kernels[name]["mlp"]["up"]["kernel"])
        np.testing.assert_allclose(stack["mlp"]["up"]["kernel"], alone, atol=1e-5)


def test_a_device_has_whole_matrices_where_rows_are_split():
    """9 matrices whose rows 8 devices hold are sent there and back; nothing is gathered."""
    kernels = {
        "core": {"mlp": {"up": {"kernel": jax.random.normal(jax.random.key(0), (9, 24, 40))}}}
    }
    mesh = parallel.mesh_from_text("data:1,fsdp:8,tensor:1")
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "fsdp", None))
    with parallel.active(mesh):
        share = jax.jit(orthogonalize, in_shardings=split, out_shardings=split)
        compiled = share.lower(kernels).compile()
    assert not re.search(r"all-gather|all-reduce|reduce-scatter", compiled.as_text())
    assert set(re.findall(r"= f32\[(\d+),24,24\]\S* dot\(", compiled.as_text())) == {"2"}
    (actual,) = jax.tree.leaves(compiled(jax.device_put(kernels, split)))
    (kernel,) = jax.tree.leaves(kernels)
    np.testing.assert_allclose(actual, newton_schulz(kernel), atol=1e-5)


def without_a_rate():
    params = model_params()
    plan = schedule(peak_rates={"matrix": 1.0, "norm": 1.0})
    jax.eval_shape(PUBLISHED.update, params, PUBLISHED.init(params), params, schedule=plan)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: PUBLISHED.init({"core": {"gate": jnp.ones(3)}}),
            r"parameter core/gate is in no",
        ),
        (
            without_a_rate,
            r"no learning rate for parameter group '\w+'; given: \['matrix', 'norm'\]",
        ),
        (lambda: plain_adamw(decayed_groups=("matrices",)), r"decayed_groups has 'matrices'; all"),
        (lambda: schedule(total_steps=0), r"total_steps is 0; at least 1"),
        (lambda: schedule(warmup_steps=10), r"warmup_steps is 10; allowed: 0 … 9"),
        (lambda: schedule(final_fraction=1.5), r"final_fraction is 1\.5; allowed: 0 … 1"),
        (lambda: schedule(peak_rates={"norm": -1.0}), r"learning rate of norm is -1\.0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(UserError, match=message):
        call()
