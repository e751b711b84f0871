"""Radial and angular part of what one recurrence does to a state, and what scale predicts of it.

A pre-norm residual block reads its input through norms, so it writes nearly the same however large
the state is: F(s u) = s u + b(u) for a unit vector u and large s. Then (arXiv:2606.24898)

    ‖F(s u)‖    = s + ⟨u, b⟩ + ‖b⊥‖² / 2s + O(s⁻²)    the norm grows by a constant each loop
    ∠(F(s u), u) = ‖b⊥‖ / s + O(s⁻²)                   and the direction turns less and less

with b⊥ the part of b at right angles to u. A loss that sees the direction alone cannot tell a large
state from a small one, and has no gradient that would bound the growth.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Numbers = TypeVar("Numbers", Array, np.ndarray)


class Update(NamedTuple):
    """One update of every token's state, each field (B, T), float32.

    Attributes:
      size: s = ‖h‖ before the update.
      radial: ⟨u, b⟩ of b = F(h) − h and u = h / s; NaN where s is 0.
      tangential: ‖b⊥‖ = ‖b − ⟨u, b⟩ u‖; NaN where s is 0.
      angle: between F(h) and h, radians; NaN where s is 0.
    """

    size: Any
    radial: Any
    tangential: Any
    angle: Any


def update(old: Array, new: Array) -> Update:
    """The parts of the update from one state to the next, (B, T, D) or lanes (K, B, T, D)."""
    old, new = full_precision(old), full_precision(new)
    size = norm(old)
    unit = old / expand(jnp.where(size > 0, size, jnp.nan), old)
    radial = inner(new - old, unit)
    tangential = norm(new - old - expand(radial, old) * unit)
    return Update(size, radial, tangential, jnp.arctan2(tangential, size + radial))


def predicted(size: Numbers, radial: Numbers, tangential: Numbers) -> tuple[Numbers, Numbers]:
    """(norm after the update, angle of the update) by the expansion for large sizes."""
    return size + radial + tangential**2 / (2 * size), tangential / size


def rescaled(state: Array, size: Array) -> Array:
    """The state in its direction with the given norm (B, T), in its dtype; zero stays zero."""
    x = full_precision(state)
    length = norm(x)
    factor = jnp.where(length > 0, size / jnp.maximum(length, jnp.finfo(x.dtype).tiny), 1.0)
    return (x * expand(factor, x)).astype(state.dtype)


def without_radial_update(old: Array, new: Array) -> Array:
    """old + b⊥, in the dtype of the new state: the update without its part along the old state."""
    x, y = full_precision(old), full_precision(new)
    square = jnp.sum(jnp.square(x), state_axes(x))
    along = inner(y - x, x) / jnp.maximum(square, jnp.finfo(x.dtype).tiny)
    return (y - expand(along, x) * x).astype(new.dtype)


def full_precision(state: Array) -> Array:
    """At least float32."""
    return state if state.dtype.itemsize >= 4 else state.astype(jnp.float32)


def norm(state: Array) -> Array:
    """‖h‖ of every token (B, T)."""
    return jnp.sqrt(jnp.sum(jnp.square(state), state_axes(state)))


def inner(a: Array, b: Array) -> Array:
    """⟨a, b⟩ of every token (B, T)."""
    return jnp.sum(a * b, state_axes(a))


def expand(values_BT: Array, state: Array) -> Array:
    """(B, T) with the axes of a state, for products with it."""
    return jnp.expand_dims(values_BT, state_axes(state))


def state_axes(state: Array) -> tuple[int, ...]:
    """The axes of a state that are not tokens: the width and, with hyperconnections, the lanes."""
    return (-1,) if state.ndim == 3 else (0, -1)
