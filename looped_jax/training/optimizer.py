"""Optimisers over parameter groups: MuonH with AdamW (arXiv:2604.21106), and plain AdamW.

Rates are data. An optimiser's update takes a `Schedule`, a small pytree of numbers, so that runs of
one shape with other budgets and other rates use one compiled step:

    optimizer = muonh_adamw(momentum=0.95, b1=0.8, b2=0.95, eps=1e-10)
    state = optimizer.init(params)
    updates, state = optimizer.update(grads, state, params, schedule=schedule)
    params = optax.apply_updates(params, updates)

MuonH keeps every matrix on the sphere of its initial Frobenius norm R: with U the momentum after
orthogonalisation, W ← W − rate·R·U/‖U‖, then W ← R·W/‖W‖. Every layer of a stack, q, k and v, gate
and up are matrices of their own. A matrix that is zero at initialisation stays zero.
"""

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from looped_jax import parallel
from looped_jax.errors import UserError

Params = Any  # a nested dict of arrays
Scalar = Any  # a float32 number: of numpy on the host, traced in a step

# Which group a parameter belongs to, by its path. Every path matches exactly one row.
GROUP_PATTERNS = (
    (r"(prelude|core|coda)/(attn|mlp)/\w+/kernel|injection/kernel", "matrix"),
    (r"(embed|positions)/embedding", "embedding"),
    (r"head/kernel", "unembedding"),
    (r"((prelude|core|coda)/)?\w+_norm/scale", "norm"),
    (r"(.+/)?\w*bias", "bias"),
    # Coefficients of the recurrence itself, elementwise or one for each lane.
    (r"lanes/\w+|injection/(?!kernel$|\w*bias$)\w+", "lane"),
)
GROUPS = tuple(group for _, group in GROUP_PATTERNS)

# Kernels whose second-to-last axis counts separate matrices: (…, in, parts, out).
FUSED_KERNEL = re.compile(r".+/(qkv|gate_up)/kernel")

# Quintic steps of the Polar Express (arXiv:2505.16932; safety factor 2e-2, cushion 2).
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


class Schedule(NamedTuple):
    """Learning rates as data: a linear warm-up, a plateau, and a linear warm-down to the end.

    At update t = 0, 1, … of N the rate is the peak times (t + 1)/warm-up in the warm-up, 1 on the
    plateau, and from t = N − warm-down on 1 − (1 − final)·(t − N + warm-down)/warm-down, as the
    code of arXiv:2604.21106 counts both. Where they overlap the warm-up goes first. A warm-down
    over the whole run is that paper's linear decay; without one the rate stays.
    """

    total_steps: Scalar  # N, of the whole run
    warmup_steps: Scalar  # 0: none
    warmdown_steps: Scalar  # 0: none
    final_fraction: Scalar  # of the peak, reached at the run's end
    peak_rates: dict[str, Scalar]  # by parameter group; `adamw` has one, "all"

    @classmethod
    def of(
        cls,
        *,
        total_steps: int,
        warmup_steps: int,
        warmdown_share: float,
        final_fraction: float,
        peak_rates: Mapping[str, float],
    ) -> "Schedule":
        """A schedule of checked numbers; UserError names the one that is not allowed.

        `warmdown_share` is the share of the run's steps that the warm-down takes.
        """
        if total_steps < 1:
            raise UserError(f"total_steps is {total_steps}; at least 1")
        if not 0 <= warmup_steps < total_steps:
            raise UserError(f"warmup_steps is {warmup_steps}; allowed: 0 … {total_steps - 1}")
        if not 0 <= warmdown_share <= 1:
            raise UserError(f"warmdown_share is {warmdown_share}; allowed: 0 … 1")
        if not 0 <= final_fraction <= 1:
            raise UserError(f"final_fraction is {final_fraction}; allowed: 0 … 1")
        for group, rate in peak_rates.items():
            if not (np.isfinite(rate) and rate >= 0):
                raise UserError(f"learning rate of {group} is {rate}; it must be finite and ≥ 0")
        return cls(
            np.float32(total_steps),
            np.float32(warmup_steps),
            np.float32(round(warmdown_share * total_steps)),
            np.float32(final_fraction),
            {group: np.float32(rate) for group, rate in peak_rates.items()},
        )

    def multiplier(self, step: jax.typing.ArrayLike) -> jax.Array:
        """The fraction of the peak rate at update `step` (from 0), float32."""
        t = jnp.asarray(step, jnp.float32)
        warm = (t + 1.0) / jnp.maximum(self.warmup_steps, 1.0)
        begun = t - (self.total_steps - self.warmdown_steps)
        progress = jnp.clip(begun / jnp.maximum(self.warmdown_steps, 1.0), 0.0, 1.0)
        down = 1.0 - (1.0 - self.final_fraction) * progress
        return jnp.where(t < self.warmup_steps, warm, down)

    def rates(self, step: jax.typing.ArrayLike) -> dict[str, jax.Array]:
        """Each group's learning rate at update `step` (from 0), float32."""
        multiplier = self.multiplier(step)
        return {group: peak * multiplier for group, peak in self.peak_rates.items()}


class OptimizerState(NamedTuple):
    step: jax.Array  # updates done, int32
    inner: Any


class MuonHState(NamedTuple):
    momentum: Params
    radius: Params  # Frobenius norm of every matrix at initialisation; its axes have size 1


def muonh_adamw(
    *, momentum: float, b1: float, b2: float, eps: float
) -> optax.GradientTransformationExtraArgs:
    """MuonH for the group "matrix", AdamW (b1, b2, eps; no decay) for all others."""
    return _scheduled(
        optax.partition(
            {
                "muonh": muonh(momentum),
                "adamw": optax.chain(_adam(b1, b2, eps), _descend(group_of)),
            },
            lambda params: _map_paths(
                lambda path, _: "muonh" if group_of(path) == "matrix" else "adamw", params
            ),
        )
    )


def adamw(
    *,
    b1: float,
    b2: float,
    eps: float,
    decay: float,
    decayed_groups: Sequence[str],
    clip_norm: float | None,
) -> optax.GradientTransformationExtraArgs:
    """AdamW with one rate for all parameters, the schedule's "all".

    The decay (decoupled, times the rate) holds for the named groups. `clip_norm` bounds the global
    norm of the gradients before anything else; None leaves them.
    """
    if unknown := [group for group in decayed_groups if group not in GROUPS]:
        raise UserError(f"decayed_groups has {unknown[0]!r}; allowed: {', '.join(GROUPS)}")
    decayed = lambda params: _map_paths(lambda path, _: group_of(path) in decayed_groups, params)
    return _scheduled(
        optax.chain(
            optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm),
            _adam(b1, b2, eps),
            optax.add_decayed_weights(decay, decayed),
            _descend(lambda _path: "all"),
        )
    )


def group_of(path: str) -> str:
    """The group of the parameter at a path such as 'core/attn/qkv/kernel'.

    Raises UserError, naming the path, unless exactly one row of GROUP_PATTERNS matches.
    """
    groups = [group for pattern, group in GROUP_PATTERNS if re.fullmatch(pattern, path)]
    if len(groups) != 1:
        found = f"groups {', '.join(groups)}" if groups else "no group"
        raise UserError(f"parameter {path} is in {found}; GROUP_PATTERNS must give it exactly one")
    return groups[0]


def parameters_by_group(params: Params) -> dict[str, int]:
    """Number of parameters in each group that is not empty; together they are all of them."""
    counts = dict.fromkeys(GROUPS, 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        counts[group_of(_join(path))] += leaf.size
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(counts.values()) == total, f"groups hold {counts}, the tree {total}"
    return {group: count for group, count in counts.items() if count}


def muonh(momentum: float) -> optax.GradientTransformationExtraArgs:
    """The MuonH rule for a tree of kernels; the update takes `rates`, and reads "matrix"."""

    def init(params):
        return MuonHState(jax.tree.map(jnp.zeros_like, params), _map_paths(_matrix_norms, params))

    def update(gradients, state, params, *, rates, **_):
        average = lambda m, g: momentum * m + (1.0 - momentum) * g
        moments = jax.tree.map(average, state.momentum, gradients)
        nesterov = jax.tree.map(average, moments, gradients)
        rate = _rate_of(rates, "matrix")

        def step(path, direction, param, radius):
            scale = rate * radius / _nonzero(_matrix_norms(path, direction))
            moved = param - scale * direction
            return moved * (radius / _nonzero(_matrix_norms(path, moved))) - param

        updates = _map_paths(step, orthogonalize(nesterov), params, state.radius)
        return updates, MuonHState(moments, state.radius)

    return optax.GradientTransformationExtraArgs(init, update)


def orthogonalize(kernels: Params) -> Params:
    """A tree of kernels, every matrix with its singular values brought near 1.

    Kernels of one name and shape in several stacks (prelude, core, coda) are taken together: one
    loop to compile, and fewer, larger products. Devices share the matrices out.
    """
    flat = {_join(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(kernels)}
    alike: dict[Any, list[str]] = collections.defaultdict(list)
    for path, kernel in flat.items():
        alike[path.partition("/")[2], kernel.shape[1:]].append(path)
    found: dict[str, jax.Array] = {}
    for paths in alike.values():
        parts = [_as_matrices(path, flat[path]) for path in paths]
        joined_NIO = parallel.share_out(newton_schulz, jnp.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])[:-1]
        for path, x_NIO in zip(paths, jnp.split(joined_NIO, ends), strict=True):
            found[path] = _as_kernel(path, x_NIO, flat[path].shape)
    return _map_paths(lambda path, _: found[path], kernels)


def _as_matrices(path: str, kernel: jax.Array) -> jax.Array:
    """The matrices of a kernel, (N, rows, columns)."""
    if FUSED_KERNEL.fullmatch(path):
        kernel = jnp.moveaxis(kernel, -2, -3)
    return kernel.reshape(-1, *kernel.shape[-2:])


def _as_kernel(path: str, x_NIO: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """What `_as_matrices` took apart."""
    if FUSED_KERNEL.fullmatch(path):
        *stack, rows, fused, columns = shape
        return jnp.moveaxis(x_NIO.reshape(*stack, fused, rows, columns), -3, -2)
    return x_NIO.reshape(shape)


def newton_schulz(x: jax.Array) -> jax.Array:
    """Five steps X ← (aI + bA + cA²)X, A = XXᵀ, over stacked matrices (…, rows, columns).

    The smaller side is taken as the rows. The input is divided by 1.02·‖X‖ + 1e-6.
    """
    if x.shape[-2] > x.shape[-1]:
        return newton_schulz(x.mT).mT
    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))
    x = x / (1.02 * norm + 1e-6)
    identity = jnp.eye(x.shape[-2], dtype=x.dtype).reshape((1,) * (x.ndim - 2) + (x.shape[-2],) * 2)

    def step(x, coefficients):
        a, b, c = coefficients
        gram = x @ x.mT
        # The identity inside the small product saves a pass over the wide X.
        return (a * identity + b * gram + c * (gram @ gram)) @ x, None

    return jax.lax.scan(step, x, jnp.array(POLAR_EXPRESS, x.dtype))[0]


def match_parameters(state: Any, params: Params, values: Any, default: Any) -> Any:
    """A tree like an optimiser state that holds, for what belongs to a parameter, its value.

    For shardings: a state's leaf whose path ends in a parameter's and that has its shape gets that
    parameter's entry of `values` (a tree like `params`), every other leaf `default`.
    """
    pairs = jax.tree.map(lambda leaf, value: (leaf.shape, value), params, values)
    by_path = dict(jax.tree_util.tree_leaves_with_path(pairs, is_leaf=lambda x: type(x) is tuple))

    def match(path, leaf):
        for start in range(len(path)):
            shape, value = by_path.get(path[start:], (None, None))
            if shape == leaf.shape:
                return value
        return default

    return jax.tree_util.tree_map_with_path(match, state)


def _scheduled(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Count the updates and hand the groups' rates of this one to `inner`."""
    inner = optax.with_extra_args_support(inner)

    def init(params):
        parameters_by_group(params)
        return OptimizerState(jnp.zeros((), jnp.int32), inner.init(params))

    def update(gradients, state, params=None, *, schedule: Schedule, **_):
        rates = schedule.rates(state.step)
        updates, new_inner = inner.update(gradients, state.inner, params, rates=rates)
        return updates, OptimizerState(optax.safe_increment(state.step), new_inner)

    return optax.GradientTransformationExtraArgs(init, update)


def _adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    inner = optax.scale_by_adam(b1, b2, eps)

    def update(updates, state, params=None):
        # optax raises b1 and b2 to the integer count, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return inner.update(updates, state, params)

    return optax.GradientTransformation(inner.init, update)


def _descend(group_of_path) -> optax.GradientTransformationExtraArgs:
    """Multiply each parameter's update by minus its group's rate."""

    def update(updates, state, params=None, *, rates, **_):
        descend = lambda path, u: -_rate_of(rates, group_of_path(path)) * u
        return _map_paths(descend, updates), state

    return optax.GradientTransformationExtraArgs(lambda _params: optax.EmptyState(), update)


def _rate_of(rates: Mapping[str, jax.Array], group: str) -> jax.Array:
    if group not in rates:
        raise UserError(f"no learning rate for parameter group {group!r}; given: {sorted(rates)}")
    return rates[group]


def _matrix_norms(path: str, kernel: jax.Array) -> jax.Array:
    """Frobenius norm of every matrix of a kernel; the matrix axes are kept with size 1."""
    axes = (-3, -1) if FUSED_KERNEL.fullmatch(path) else (-2, -1)
    return jnp.sqrt(jnp.sum(jnp.square(kernel), axis=axes, keepdims=True))


def _nonzero(norm: jax.Array) -> jax.Array:
    return jnp.where(norm > 0, norm, 1.0)


def _join(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _map_paths(function, tree: Params, *rest: Params) -> Params:
    """`jax.tree.map` with the path ('core/mlp/up/kernel') as the first argument."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(_join(path), *leaves), tree, *rest
    )
