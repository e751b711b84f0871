"""The loop equals its unrolled self in value and gradient, and does only the work it should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.model import recurrence

CAPACITY = 6
KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {"w": 0.6 * jax.random.normal(KEYS[0], (4, 4))}
STATE = jax.random.normal(KEYS[1], (3, 4))
INPUT = jax.random.normal(KEYS[2], (3, 4))
CONSTANTS = {"scale_R": jnp.linspace(0.5, 1.5, CAPACITY), "order": jnp.arange(3)}


def step(params, state, input_BD, constants, index):
    mixed = state[constants["order"][::-1]] @ params["w"] + input_BD
    return jnp.tanh(constants["scale_R"][index] * mixed)


def unrolled(params, state, input_BD, recurrences, window):
    window = window or recurrences
    for i in range(recurrences):
        if recurrences > window and i == recurrences - window:
            state = jax.lax.stop_gradient(state)
        outside = i < recurrences - window
        args = jax.lax.stop_gradient((params, input_BD)) if outside else (params, input_BD)
        state = step(args[0], state, args[1], CONSTANTS, i)
    return state


def loss_of(state):
    return jnp.sum(state * jnp.arange(12.0).reshape(3, 4))


def assert_trees_close(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), actual, expected
    )


@pytest.mark.parametrize("window", [0, 1, 2, 5])
def test_equals_the_unrolled_loop(window):
    def looped(params, state, input_BD, recurrences):
        end = recurrence.loop(
            step, params, state, input_BD, CONSTANTS, recurrences, capacity=CAPACITY, window=window
        )
        return loss_of(end)

    gradients = lambda f: jax.value_and_grad(f, argnums=(0, 1, 2))
    traced = jax.jit(gradients(looped))
    for recurrences in (1, 2, 3, 6):
        reference = lambda *args, r=recurrences: loss_of(unrolled(*args, r, window))
        expected = gradients(reference)(PARAMS, STATE, INPUT)
        assert_trees_close(traced(PARAMS, STATE, INPUT, jnp.int32(recurrences)), expected)
        static = lambda *args, r=recurrences: looped(*args, r)
        assert_trees_close(gradients(static)(PARAMS, STATE, INPUT), expected)
    assert traced._cache_size() == 1


@pytest.mark.parametrize("window", [0, 2])
def test_a_step_that_recomputes_runs_twice_at_a_fixed_depth_not_three_times(window):
    runs = []

    def counted(params, state, input_BD, constants, index):
        jax.debug.callback(runs.append, index)
        return step(params, state, input_BD, constants, index)

    def gradients(recomputes):
        def looped(params, state, input_BD):
            end = recurrence.loop(
                jax.checkpoint(counted), params, state, input_BD, CONSTANTS, 5,
                capacity=CAPACITY, window=window, step_recomputes=recomputes,
            )  # fmt: skip
            return loss_of(end)

        runs.clear()
        values = jax.jit(jax.value_and_grad(looped, argnums=(0, 1, 2)))(PARAMS, STATE, INPUT)
        jax.block_until_ready(values)
        jax.effects_barrier()
        return values, len(runs)

    values, count = gradients(True)
    expected, count_without = gradients(False)
    assert_trees_close(values, expected)
    inside = window or 5
    assert (count, count_without) == (5 + inside, 5 + 2 * inside)


def test_trajectory_holds_every_state():
    def looped(params, state, input_BD):
        return recurrence.trajectory(step, params, state, input_BD, CONSTANTS, 4)

    def reference(params, state, input_BD):
        return jnp.stack([unrolled(params, state, input_BD, r, 0) for r in range(1, 5)])

    total = lambda f: lambda *args: sum(loss_of(s) * (k + 1) for k, s in enumerate(f(*args)))
    args = (PARAMS, STATE, INPUT)
    assert_trees_close(looped(*args), reference(*args))
    gradients = lambda f: jax.grad(total(f), argnums=(0, 1, 2))(*args)
    assert_trees_close(gradients(looped), gradients(reference))


def counting_step():
    """A step that counts its executed forward and backward passes, at run time."""
    counts = {"forward": 0, "backward": 0}

    def count(name):
        counts[name] += 1

    @jax.custom_vjp
    def work(x):
        return forward(x)[0]

    def forward(x):
        jax.debug.callback(lambda: count("forward"))
        return jnp.tanh(x), x

    def backward(x, ct):
        jax.debug.callback(lambda: count("backward"))
        return (ct * (1 - jnp.tanh(x) ** 2),)

    work.defvjp(forward, backward)
    return counts, lambda params, state, input_BD, constants, i: work(
        state @ params["w"] + input_BD
    )


@pytest.mark.parametrize("depth", ["static", "traced"])
@pytest.mark.parametrize(
    ("recurrences", "window", "forward", "backward"),
    [
        # Every recurrence of the backward pass is computed again from the state before it.
        (6, 0, 6 + 6, 6),
        (2, 0, 2 + 2, 2),
        (6, 2, 6 + 2, 2),
        (2, 4, 2 + 2, 2),
    ],
)
def test_skipped_work_is_not_executed(recurrences, window, forward, backward, depth):
    counts, step = counting_step()

    def loss(params, recurrences):
        return loss_of(
            recurrence.loop(
                step, params, STATE, INPUT, {}, recurrences, capacity=CAPACITY, window=window
            )
        )

    if depth == "traced":
        gradient = jax.jit(jax.grad(loss))(PARAMS, jnp.int32(recurrences))
    else:
        gradient = jax.jit(jax.grad(lambda params: loss(params, recurrences)))(PARAMS)
    jax.block_until_ready(gradient)
    jax.effects_barrier()
    assert counts == {"forward": forward, "backward": backward}


def test_without_gradients_nothing_is_saved_or_run_again():
    counts, step = counting_step()
    run = jax.jit(lambda r: recurrence.loop(step, PARAMS, STATE, INPUT, {}, r, capacity=CAPACITY))
    jax.block_until_ready(run(jnp.int32(5)))
    jax.effects_barrier()
    assert counts == {"forward": 5, "backward": 0}


def test_memory_grows_with_the_state_and_not_with_the_activations():
    wide = 64

    def step(params, state, input_BD, constants, index):
        hidden = jnp.tanh(state @ params["up"] + input_BD @ params["up"])
        return jnp.tanh(hidden @ params["down"])

    params = {"up": jnp.ones((4, 4 * wide)) / 8, "down": jnp.ones((4 * wide, 4)) / 8}
    state = jnp.ones((512, 4))

    def temporary(capacity):
        loss = lambda params, r: jnp.sum(
            recurrence.loop(step, params, state, state, {}, r, capacity=capacity)
        )
        compiled = jax.jit(jax.grad(loss)).lower(params, jnp.int32(1)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    growth = (temporary(32) - temporary(16)) / 16
    assert state.nbytes <= growth < 2 * state.nbytes
