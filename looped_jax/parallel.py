"""Devices: the mesh, the one table of logical axes, and shardings of parameters and batches.

A mesh is written "data:-1,fsdp:1,tensor:1"; -1 takes what is left. `data` copies parameters and
splits the batch; `fsdp` splits both; `tensor` splits heads, MLP hidden units and the vocabulary.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from looped_jax.errors import UserError
from looped_jax.model.boxes import is_boxed

MESH_AXES = ("data", "fsdp", "tensor")

# Logical axis -> mesh axes. Every axis named by the model stands here, None meaning not split.
LOGICAL_AXES: dict[str, str | tuple[str, ...] | None] = {
    # activations
    "batch": ("data", "fsdp"),
    "length": None,
    "width": None,
    "hidden": "tensor",
    # stacked matrices in an optimiser's update: see `share_out`
    "matrices": "data",
    "matrices_whole": ("data", "fsdp"),
    # parameters
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "mlp": "tensor",
    "qkv": None,
    "gate_up": None,
    "inject": None,
    "norm": None,
    "positions": None,
    "layers": None,
    "recurrences": None,
    "lanes": None,
    "lanes_in": None,
}


def mesh_sizes(text: str) -> dict[str, int]:
    """Devices by axis, as a text like "data:-1,fsdp:1,tensor:1" gives them.

    Raises:
      UserError: an unknown or missing axis, a size that is none, or more than one -1.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition(":")
        if name not in MESH_AXES or name in sizes:
            raise UserError(
                f"mesh {text!r}: axis {name!r}; allowed: each of {', '.join(MESH_AXES)} once"
            )
        try:
            sizes[name] = int(size)
        except ValueError:
            raise UserError(f"mesh {text!r}: size {size!r} of {name}; allowed: a number") from None
    if missing := [name for name in MESH_AXES if name not in sizes]:
        raise UserError(f"mesh {text!r}: axis {missing[0]!r} is missing")
    free = [size for size in sizes.values() if size == -1]
    if len(free) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise UserError(f"mesh {text!r}: allowed are sizes from 1, and one -1")
    return sizes


def sizes_for(text: str, devices: int) -> dict[str, int]:
    """Devices by axis, in the order of MESH_AXES, of the mesh that a text describes on so many.

    Raises:
      UserError: as `mesh_sizes` does, or sizes that do not make up the number of devices.
    """
    sizes = mesh_sizes(text)
    free = [name for name, size in sizes.items() if size == -1]
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free:
        sizes[free[0]] = devices // fixed
    if math.prod(sizes.values()) != devices:
        raise UserError(
            f"mesh {text!r} is for {fixed}{' x n' if free else ''} devices; there are {devices}"
        )
    return {name: sizes[name] for name in MESH_AXES}


def mesh_from_text(text: str, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh that a text like "data:-1,fsdp:1,tensor:1" describes.

    With a -1 it spans all devices; without one, a single process may ask for fewer than there are
    and gets the first ones.

    Raises:
      UserError: as `mesh_sizes` does, or sizes that do not make up the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(text)
    if -1 not in sizes.values() and jax.process_count() == 1:
        devices = devices[: math.prod(sizes.values())]
    shape = tuple(sizes_for(text, len(devices)).values())
    return jax.make_mesh(shape, MESH_AXES, (AxisType.Auto,) * len(MESH_AXES), devices=devices)


@contextlib.contextmanager
def active(mesh: Mesh) -> Iterator[None]:
    """Makes the mesh and the table of logical axes hold inside the block.

    Without both, flax's logical constraints do nothing and say nothing.
    """
    with jax.set_mesh(mesh), nn.logical_axis_rules(tuple(LOGICAL_AXES.items())):
        yield


def parameter_shardings(boxed_params: Any, mesh: Mesh) -> Any:
    """Shardings for a tree of (abstract) parameters that still carries its logical axis names.

    Raises:
      UserError: a name that the table lacks, two axes of one array on one mesh axis, or a size that
        the mesh axis does not divide.
    """

    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not is_boxed(leaf):
            raise UserError(f"parameter {name} has no logical axes")
        for axis in leaf.names:
            if axis not in LOGICAL_AXES:
                raise UserError(f"parameter {name}: logical axis {axis!r} is not in the table")
        mesh_axes = [LOGICAL_AXES[axis] for axis in leaf.names]
        used = [axis for axis in mesh_axes if axis is not None]
        if len(used) != len(set(used)):
            raise UserError(f"parameter {name}: axes {leaf.names} collide on mesh axes {used}")
        sizes = zip(leaf.names, leaf.value.shape, strict=True)
        check_sizes(
            mesh, {f"axis {axis!r} of parameter {name}": (axis, size) for axis, size in sizes}
        )
        return NamedSharding(mesh, PartitionSpec(*mesh_axes))

    return jax.tree_util.tree_map_with_path(sharding, boxed_params, is_leaf=is_boxed)


def check_sizes(mesh: Mesh, sizes: Mapping[str, tuple[str, int]]) -> None:
    """Raises UserError if the mesh does not divide a size, and names what would.

    A compiler lets each device compute the whole instead, and says nothing.

    Args:
      sizes: what a config calls it -> (logical axis of parameters, size).
    """
    for name, (logical, size) in sizes.items():
        axis = LOGICAL_AXES[logical]
        ways = mesh.shape[axis] if isinstance(axis, str) else 1
        if size % ways:
            dividing = [str(n) for n in range(1, min(size, mesh.size) + 1) if size % n == 0]
            near = [str(n * ways) for n in (size // ways, size // ways + 1) if n]
            raise UserError(
                f"{name} = {size} does not divide over mesh axis {axis}:{ways}; "
                f"{axis} may be {' or '.join(dividing)}, or {name} {' or '.join(near)}"
            )


def replicated(mesh: Mesh) -> NamedSharding:
    """On every device, whole."""
    return NamedSharding(mesh, PartitionSpec())


def rows(mesh: Mesh) -> NamedSharding:
    """Rows of a batch over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(LOGICAL_AXES["batch"]))


def only_data_splits(mesh: Mesh) -> bool:
    """Whether several devices hold all parameters, and each a part of the batch."""
    return mesh.shape["data"] == mesh.size > 1


def mean_over_data(
    mesh: Mesh, function: Callable[..., Any], whole: tuple[Any, ...], rows: tuple[Any, ...]
) -> Any:
    """The mean of `function(*whole, *rows)` over the devices of a mesh that `only_data_splits`.

    Each device computes on its rows alone, and the results are summed once. Left to the compiler,
    gradients of shared weights are summed over devices at every turn of a loop.

    Args:
      function: what it returns are means over its rows.
      whole: trees of arrays that every device sees.
      rows: trees whose arrays have the batch as their first axis; numbers go to every device.
    """
    split = jax.tree.map(lambda x: PartitionSpec("data") if jnp.ndim(x) else PartitionSpec(), rows)

    def on_device(whole: tuple[Any, ...], rows: tuple[Any, ...]) -> Any:
        # Nothing in here is split any further.
        with nn.logical_axis_rules([(logical, None) for logical in LOGICAL_AXES]):
            return jax.lax.pmean(function(*whole, *rows), "data")

    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=PartitionSpec(),
        check_vma=False,
    )(whole, rows)  # fmt: skip


def share_out(function: Callable[[jax.Array], jax.Array], x_NIO: jax.Array) -> jax.Array:
    """`function` of N stacked matrices that devices share out, so that none is computed twice.

    Without `tensor` each matrix is whole on one device; with it, rows and columns stay split over
    all axes but `data`, since the compiler would gather everything everywhere to change that. It
    would, too, for two mesh axes in one step, or a number of matrices that devices do not divide:
    zeros fill it up.
    """
    shape, free = jax.sharding.get_abstract_mesh().shape, PartitionSpec.UNCONSTRAINED
    hops: list[tuple[Any, ...]] = [("matrices", free, free)]
    N, filled = len(x_NIO), len(x_NIO)
    ways = shape.get("data", 1) * shape.get("fsdp", 1)
    if shape.get("tensor", 1) == 1 < shape.get("fsdp", 1) and N > 1:
        hops.append(("matrices_whole", None, None))
        filled = -(-N // ways) * ways
    x_NIO = jnp.pad(x_NIO, ((0, filled - N), (0, 0), (0, 0)))
    for axes in hops:
        x_NIO = nn.with_logical_constraint(x_NIO, axes)
    y_NIO = function(x_NIO)
    for axes in reversed(hops):
        y_NIO = nn.with_logical_constraint(y_NIO, axes)
    return y_NIO[:N]


def check_batch(mesh: Mesh, section: str, batch_size: int, microbatches: int = 1) -> None:
    """Raises UserError if the rows of a batch do not divide over data, fsdp and microbatches."""
    ways = _ways_of_rows(mesh)
    if batch_size % (ways * microbatches):
        parts = f" x {microbatches} microbatches" if microbatches > 1 else ""
        raise UserError(
            f"{section}.batch_size = {batch_size} sequences does not divide over data:"
            f"{mesh.shape['data']} x fsdp:{mesh.shape['fsdp']} = {ways} devices{parts}"
        )


def filled_up(mesh: Mesh, batch_size: int) -> int:
    """The next number of rows that divides over data and fsdp."""
    ways = _ways_of_rows(mesh)
    return -(-batch_size // ways) * ways


def _ways_of_rows(mesh: Mesh) -> int:
    """Parts that a batch is split into, over data and fsdp."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Rows of a global batch that this process feeds: those that its devices hold, ascending.

    Which rows a device holds depends on the mesh alone, so the batch as a whole is the same for
    every number of processes. Processes that share a model replica feed the same rows.
    """
    held = rows(mesh).addressable_devices_indices_map((batch_size,))
    numbers = np.arange(batch_size)
    return np.unique(np.concatenate([numbers[index] for index in held.values() if index]))


def global_batch(batch: Mapping[str, Any], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's rows (see `local_rows`) as parts of global arrays over data and fsdp."""
    sharding = rows(mesh)
    if sharding.is_fully_addressable:
        return {name: jax.device_put(part, sharding) for name, part in batch.items()}
    ways = _ways_of_rows(mesh)
    ways_here = len(local_rows(mesh, ways))

    def put(part: np.ndarray) -> jax.Array:
        batch_size = len(part) // ways_here * ways
        fed = local_rows(mesh, batch_size)

        def held(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            start, stop, _ = index[0].indices(batch_size)
            first = int(np.searchsorted(fed, start))
            return part[first : first + stop - start]

        return jax.make_array_from_callback((batch_size, *part.shape[1:]), sharding, held)

    return {name: put(part) for name, part in batch.items()}
