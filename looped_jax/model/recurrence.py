"""The loop: one block applied r times, r fixed or traced, gradients in full or through the last k.

`loop` runs a pure function `step(params, state, inputs, constants, index) -> state`. Its forward
pass has a dynamic trip count; the backward pass recomputes each recurrence from the state before
it, unless r is fixed and the step recomputes its own parts. So one compiled program serves every
depth, recurrences that are skipped cost nothing in either direction, and memory grows with the
state per recurrence, not with the block's activations.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Tree = Any
Step = Callable[[Tree, Tree, Tree, Tree, Array], Tree]


def loop(
    step: Step,
    params: Tree,
    state: Tree,
    inputs: Tree,
    constants: Tree,
    recurrences: int | Array,
    *,
    capacity: int,
    window: int = 0,
    step_recomputes: bool = False,
) -> Tree:
    """Applies `step` `recurrences` times.

    Args:
      step: pure; must not close over traced values. `index` counts recurrences from 0.
      params: float arrays shared by every recurrence; differentiated.
      state: tree of float arrays; every step keeps shapes and dtypes; differentiated.
      inputs: float arrays that every recurrence sees; differentiated.
      constants: arrays that every recurrence sees and no gradient reaches (angles, keys, depths).
      recurrences: r >= 1, a Python int or an int32 scalar.
      capacity: most recurrences that gradients flow through (the length of the saved trajectory);
        with a traced r and no window, r must not exceed it.
      window: gradients flow through the last `window` recurrences only and the state before them
        is a constant (truncated backpropagation); 0 = all.
      step_recomputes: the step itself keeps little and recomputes the rest (layers under
        jax.checkpoint). With a fixed r the loop then keeps what the step keeps, for every
        recurrence, and runs nothing a third time; with a traced r it makes no difference.

    Returns:
      The state after the last recurrence.
    """
    start: int | Array = 0
    if window:
        capacity = min(window, capacity)
        state, start = _advance(step, params, state, inputs, constants, recurrences, window)
    if isinstance(recurrences, int) and isinstance(start, int) and recurrences - start == 1:
        return step(params, state, inputs, constants, jnp.int32(start))
    if step_recomputes and isinstance(recurrences, int) and isinstance(start, int):
        body = lambda state, index: (step(params, state, inputs, constants, index), None)
        return jax.lax.scan(body, state, jnp.arange(start, recurrences, dtype=jnp.int32))[0]
    start, stop = jnp.asarray(start, jnp.int32), jnp.asarray(recurrences, jnp.int32)
    return _loop(step, capacity, params, state, inputs, constants, start, stop)


def trajectory(
    step: Step, params: Tree, state: Tree, inputs: Tree, constants: Tree, recurrences: int
) -> Tree:
    """The states after each of `recurrences` steps, stacked on axis 0: leaves (R, ...).

    For losses and measurements at every loop. Gradients are full; each recurrence is recomputed
    in the backward pass.
    """

    def body(state: Tree, index: Array) -> tuple[Tree, Tree]:
        rematerialised = jax.checkpoint(step, prevent_cse=False)
        state = rematerialised(params, state, inputs, constants, index)
        return state, state

    return jax.lax.scan(body, state, jnp.arange(recurrences, dtype=jnp.int32))[1]


def _advance(
    step: Step,
    params: Tree,
    state: Tree,
    inputs: Tree,
    constants: Tree,
    recurrences: int | Array,
    window: int,
) -> tuple[Tree, int | Array]:
    """Runs all but the last `window` recurrences without gradients."""
    constant = partial(jax.tree.map, jax.lax.stop_gradient)
    params, inputs = constant(params), constant(inputs)
    advance = lambda count, s: jax.lax.fori_loop(
        0, count, lambda i, s: step(params, s, inputs, constants, i), s
    )
    if isinstance(recurrences, int):
        start = max(recurrences - window, 0)
        return (constant(advance(start, constant(state))) if start else state), start
    skipped = jnp.maximum(recurrences - window, 0)
    advanced = constant(advance(skipped, constant(state)))
    # With r <= window nothing was skipped and the gradient reaches the initial state.
    choose = lambda a, s: jnp.where(skipped > 0, a, s)
    return jax.tree.map(choose, advanced, state), skipped


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _loop(step, capacity, params, state, inputs, constants, start, stop):
    body = lambda i, state: step(params, state, inputs, constants, i)
    return jax.lax.fori_loop(start, stop, body, state)


def _loop_forward(step, capacity, params, state, inputs, constants, start, stop):
    saved = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), state)

    def body(i, carry):
        state, saved = carry
        store = lambda buffer, s: jax.lax.dynamic_update_index_in_dim(buffer, s, i - start, 0)
        saved = jax.tree.map(store, saved, state)
        return step(params, state, inputs, constants, i), saved

    state, saved = jax.lax.fori_loop(start, stop, body, (state, saved))
    return state, (params, saved, inputs, constants, start, stop)


def _loop_backward(step, capacity, residuals, ct_state):
    params, saved, inputs, constants, start, stop = residuals

    def body(j, carry):
        ct_state, ct_params, ct_inputs = carry
        i = stop - 1 - j
        load = lambda buffer: jax.lax.dynamic_index_in_dim(buffer, i - start, 0, keepdims=False)
        state = jax.tree.map(load, saved)
        differentiated = lambda p, s, x: step(p, s, x, constants, i)
        _, pullback = jax.vjp(differentiated, params, state, inputs)
        d_params, ct_state, d_inputs = pullback(ct_state)
        add = partial(jax.tree.map, jnp.add)
        return ct_state, add(ct_params, d_params), add(ct_inputs, d_inputs)

    zeros = partial(jax.tree.map, jnp.zeros_like)
    carry = (ct_state, zeros(params), zeros(inputs))
    ct_state, ct_params, ct_inputs = jax.lax.fori_loop(0, stop - start, body, carry)
    return ct_params, ct_state, ct_inputs, None, None, None


_loop.defvjp(_loop_forward, _loop_backward)
