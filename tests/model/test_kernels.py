"""Fused attention against the plain one, and what each kernel refuses."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from looped_jax import parallel
from looped_jax.model import kernels
from looped_jax.model.attention import causal_attention

TPU, GPU, CPU = (kernels.Place(platform, 4, 2) for platform in ("tpu", "gpu", "cpu"))
SHAPE = (8, 256, 2, 64)


def test_splash_is_plain_attention_in_value_and_gradient(monkeypatch):
    """Two blocks of which the second is filled up, rows and heads split over devices."""
    monkeypatch.setattr(kernels, "SPLASH_BLOCK", 128)
    q, k, v, weight = jax.random.normal(jax.random.key(0), (4, 2, 130, 2, 8))

    def value_and_gradients(attend):
        loss = lambda q, k, v: jnp.sum(attend(q, k, v) * weight)
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v)

    with parallel.active(parallel.mesh_from_text("data:2,fsdp:1,tensor:2")):
        found = value_and_gradients(lambda *qkv: kernels.splash(*qkv, interpret=True))
    expected = value_and_gradients(lambda *qkv: causal_attention(*qkv, "xla"))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "place", "expected"),
    [
        ("xla", SHAPE, "bfloat16", TPU, "xla"),
        ("auto", SHAPE, "bfloat16", TPU, "splash"),
        ("auto", SHAPE, "bfloat16", GPU, "cudnn"),
        ("auto", SHAPE, "bfloat16", CPU, "xla"),
        ("auto", SHAPE, "float32", GPU, "xla"),
        ("auto", (6, 256, 2, 64), "bfloat16", TPU, "xla"),
        ("splash", (1, 1, 2, 64), "float32", CPU, "xla"),
    ],
)
def test_a_kernel_is_chosen_by_platform_and_shape(kernel, shape, dtype, place, expected):
    assert kernels.choose(kernel, shape, dtype, place) == expected


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "place", "message"),
    [
        ("splash", SHAPE, "bfloat16", GPU, "'splash' runs on TPUs; .* platform 'gpu'; allowed"),
        ("cudnn", SHAPE, "bfloat16", CPU, "'cudnn' runs on NVIDIA GPUs; .* platform 'cpu'"),
        ("splash", (6, 256, 2, 64), "bfloat16", TPU, "6 sequences do not divide over 4"),
        ("splash", (8, 256, 5, 64), "bfloat16", TPU, "heads by device; 5 do not divide over 2"),
        ("cudnn", SHAPE, "float32", GPU, "in bfloat16; model.compute_dtype is 'float32'"),
        ("cudnn", (8, 256, 2, 132), "bfloat16", GPU, "multiple of 8 up to 128; .* is 132"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused(kernel, shape, dtype, place, message):
    with pytest.raises(ValueError, match=f"^model.attention = .*{message}"):
        kernels.choose(kernel, shape, dtype, place)


def test_the_model_asks_for_the_kernel_of_the_mesh_it_runs_on(monkeypatch):
    """Traced for four TPUs and for one GPU that are not here."""
    q = jax.ShapeDtypeStruct((4, 256, 2, 64), jnp.bfloat16)

    def traced(mesh, kernel="auto"):
        with (
            jax.sharding.use_abstract_mesh(mesh),
            nn.logical_axis_rules(tuple(parallel.LOGICAL_AXES.items())),
        ):
            return str(jax.make_jaxpr(lambda *qkv: causal_attention(*qkv, kernel))(q, q, q))

    assert "splash" in traced(abstract((2, 1, 2), "TPU v5 lite", "tpu"))
    assert "pallas" not in traced(abstract((1, 1, 1), "cpu", "cpu"))
    with pytest.raises(ValueError, match="'cudnn' runs on NVIDIA GPUs"):
        traced(abstract((2, 1, 2), "TPU v5 lite", "tpu"), "cudnn")


def test_cudnn_is_lowered_for_a_gpu_that_is_not_here(monkeypatch):
    """Forward and backward call cuDNN; what is asked of the GPU is answered in its place."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: False)
    q = jax.ShapeDtypeStruct((2, 128, 2, 64), jnp.bfloat16)
    names = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")
    loss = lambda q, k, v: jnp.sum(causal_attention(q, k, v, "auto").astype(jnp.float32))
    with jax.sharding.use_abstract_mesh(abstract((1, 1, 1), "NVIDIA H100", "gpu")):
        exported = jax.export.export(
            jax.jit(jax.grad(loss)), platforms=["cuda"],
            disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(name) for name in names],
        )(q, q, q)  # fmt: skip
    assert all(f"@{name}(" in exported.mlir_module() for name in names)


def abstract(shape, kind, platform):
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    axes = (AxisType.Auto,) * len(shape)
    return AbstractMesh(shape, parallel.MESH_AXES, axes, abstract_device=device)
