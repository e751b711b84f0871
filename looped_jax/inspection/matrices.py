"""The norm of every matrix of a model, layer by layer."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

Array = jax.Array

# Matrices that are stored as one, and the axis after the input along which they lie.
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
PARTS = ("embed", "positions", "prelude", "injection", "core", "coda", "head")
# Power iterations; a lower bound that is close whenever the largest singular value stands out.
ITERATIONS = 50


def matrix_table(params: Any) -> pd.DataFrame:
    """One row for each matrix: part, layer (-1 outside of layers), matrix, rows, columns, norms.

    `frobenius` is ‖W‖_F, `rms` that over the root of the number of entries, `spectral` the largest
    singular value by power iteration.
    """
    rows = []
    for part, layer, name, matrix in matrices(params):
        frobenius, spectral = (float(value) for value in norms(matrix))
        rows.append(
            {
                "part": part,
                "layer": layer,
                "matrix": name,
                "rows": matrix.shape[0],
                "columns": matrix.shape[1],
                "rms": frobenius / matrix.size**0.5,
                "frobenius": frobenius,
                "spectral": spectral,
            }
        )
    return pd.DataFrame(rows)


def matrices(params: Any) -> list[tuple[str, int, str, Array]]:
    """(part, layer, name, matrix (in, out)) of every matrix, in the order of the forward pass."""
    return sorted(_unordered(params), key=lambda found: (PARTS.index(found[0]), found[1]))


def _unordered(params: Any) -> Iterator[tuple[str, int, str, Array]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        part, *names, kind = (entry.key for entry in path)
        if kind == "embedding":
            yield part, -1, "embedding", leaf
        elif kind == "kernel" and not names:
            yield part, -1, "kernel", leaf
        elif kind == "kernel":
            name = names[-1]
            for layer in range(leaf.shape[0]):
                if name not in FUSED:
                    yield part, layer, name, leaf[layer]
                for i, fused in enumerate(FUSED.get(name, ())):
                    yield part, layer, fused, leaf[layer][:, i]


@functools.partial(jax.jit, static_argnums=1)
def norms(matrix: Array, iterations: int = ITERATIONS) -> tuple[Array, Array]:
    """(Frobenius norm, largest singular value) in float32."""
    matrix = matrix.astype(jnp.float32)
    start = jax.random.normal(jax.random.key(0), (matrix.shape[1],))

    def step(_, v):
        v = matrix.T @ (matrix @ v)
        return v / jnp.maximum(jnp.linalg.norm(v), 1e-30)

    v = jax.lax.fori_loop(0, iterations, step, start)
    return jnp.linalg.norm(matrix), jnp.linalg.norm(matrix @ v)
