"""Attention kernels of accelerators, which never write the T x T scores to memory.

"splash" is the Pallas kernel for TPUs that JAX ships, "cudnn" the fused one of NVIDIA GPUs. Here
stands what each can do; `attention.causal_attention` calls them, and the plain products elsewhere.
"""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

Array = jax.Array

# What a platform has of its own.
OF_PLATFORM = {"tpu": "splash", "gpu": "cudnn"}
# Logical axes of q, k and v (B, T, H, d).
AXES = ("batch", "length", "heads", None)
# The most queries, and keys, that splash holds on the chip at one time; its blocks are multiples of
# a TPU's 128 lanes, and sequences are filled up to whole blocks.
SPLASH_BLOCK = 512
LANES = 128
BLOCKS = (
    "block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv",
    "block_kv_dkv_compute", "block_q_dq", "block_kv_dq",
)  # fmt: skip
# What cuDNN's flash attention takes on every GPU that has bfloat16.
CUDNN_DTYPES = ("bfloat16", "float16")
CUDNN_HEAD_DIM, CUDNN_HEAD_DIM_STEP = 128, 8


class Place(NamedTuple):
    """Where attention runs: the platform ("cpu", "gpu", "tpu") and devices by what they split."""

    platform: str
    batch: int
    heads: int


def place_of(mesh: Mesh | AbstractMesh) -> Place:
    """The place that a mesh is, under the active table of logical axes; no mesh is one device."""
    if mesh.empty:
        return Place(jax.default_backend(), 1, 1)
    if isinstance(mesh, Mesh):
        platform = mesh.devices.flat[0].platform
    else:
        device = mesh.abstract_device
        platform = device.platform if device else jax.default_backend()
    ways = [math.prod(mesh.shape[axis] for axis in axes) for axes in _split_by(mesh)]
    return Place(platform, ways[0], ways[2])


def choose(kernel: str, shape_BTHd: tuple[int, ...], dtype: Any, place: Place) -> str:
    """The kernel, "xla", "splash" or "cudnn", that `model.attention` = `kernel` means here.

    "auto" is the platform's own where it can do this shape, and "xla" otherwise. A single token
    needs none.

    Raises:
      ValueError: the kernel that was asked for cannot do this here.
    """
    if kernel == "xla" or shape_BTHd[1] == 1:
        return "xla"
    if kernel == "auto":
        own = OF_PLATFORM.get(place.platform, "xla")
        return own if own == "xla" or obstacle(own, shape_BTHd, dtype, place) is None else "xla"
    if what := obstacle(kernel, shape_BTHd, dtype, place):
        raise ValueError(f"model.attention = {kernel!r} {what}; allowed here: xla, auto")
    return kernel


def obstacle(kernel: str, shape_BTHd: tuple[int, ...], dtype: Any, place: Place) -> str | None:
    """What keeps "splash" or "cudnn" from this shape here, as the rest of a sentence; or None."""
    B, _, H, d = shape_BTHd
    if OF_PLATFORM.get(place.platform) != kernel:
        runs_on = {"splash": "TPUs", "cudnn": "NVIDIA GPUs"}[kernel]
        return f"runs on {runs_on}; the devices are of platform {place.platform!r}"
    if B % place.batch:
        return f"splits the batch by device; {B} sequences do not divide over {place.batch}"
    if H % place.heads:
        return f"splits the heads by device; {H} do not divide over {place.heads}"
    if kernel == "cudnn":
        if jnp.dtype(dtype).name not in CUDNN_DTYPES:
            return f"computes in bfloat16; model.compute_dtype is {jnp.dtype(dtype).name!r}"
        if d > CUDNN_HEAD_DIM or d % CUDNN_HEAD_DIM_STEP:
            return (
                f"takes a head_dim that is a multiple of {CUDNN_HEAD_DIM_STEP} up to "
                f"{CUDNN_HEAD_DIM}; model.head_dim is {d}"
            )
    return None


def cudnn(q_BTHd: Array, k_BTHd: Array, v_BTHd: Array) -> Array:
    """Causal attention at scale d^-1/2 by cuDNN's fused kernel."""
    return jax.nn.dot_product_attention(
        q_BTHd, k_BTHd, v_BTHd, is_causal=True, implementation="cudnn"
    )


def splash(q_BTHd: Array, k_BTHd: Array, v_BTHd: Array, *, interpret: bool = False) -> Array:
    """Causal attention at scale d^-1/2 by the Pallas kernel, every device on its rows and heads.

    Keys that fill the last block up stand behind all tokens, so none of them sees one.

    Args:
      interpret: runs the kernel's program on any platform, slowly.
    """

    # Pallas takes half a second to import, for which nobody else should wait.
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    def local(q_BTHd: Array, k_BTHd: Array, v_BTHd: Array) -> Array:
        _, T, H, d = q_BTHd.shape
        block = min(SPLASH_BLOCK, _up_to(T, LANES))
        filled = _up_to(T, block)
        blocks: dict[str, Any] = dict.fromkeys(BLOCKS, block)
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask(
                [splash_attention_mask.CausalMask((filled, filled))] * H
            ),
            head_shards=1,
            q_seq_shards=1,
            block_sizes=splash_attention_kernel.BlockSizes(**blocks),
            interpret=interpret,
        )
        fill = lambda x_BTHd: jnp.swapaxes(
            jnp.pad(x_BTHd, ((0, 0), (0, filled - T), (0, 0), (0, 0))), 1, 2
        )
        q_BHTd = fill(q_BTHd * q_BTHd.dtype.type(d**-0.5))
        mixed_BHTd = jax.vmap(kernel)(q_BHTd, fill(k_BTHd), fill(v_BTHd))
        return jnp.swapaxes(mixed_BHTd, 1, 2)[:, :T]

    mesh = jax.sharding.get_abstract_mesh()
    split = _split_by(mesh)
    if not any(split):
        return local(q_BTHd, k_BTHd, v_BTHd)
    # The compiler cannot split a kernel by itself.
    spec = PartitionSpec(*(axes or None for axes in split))
    names = {axis for axes in split for axis in axes}
    return jax.shard_map(
        local, in_specs=(spec, spec, spec), out_specs=spec, axis_names=names, check_vma=False
    )(q_BTHd, k_BTHd, v_BTHd)


def _split_by(mesh: Mesh | AbstractMesh) -> list[tuple[str, ...]]:
    """Mesh axes that split each of `AXES`, but for those that the caller has split by itself."""
    if mesh.empty:
        return [()] * len(AXES)
    free = [
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind != AxisType.Manual
    ]
    found: list[tuple[str, ...]] = []
    for axes in nn.logical_to_mesh_axes(AXES) or [None] * len(AXES):
        names = axes if isinstance(axes, tuple) else (axes,)
        found.append(tuple(name for name in names if name in free))
    return found


def _up_to(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
