"""The bound of a step: counts against the analytic ones, and what limits it."""

import pytest

from configs import elastic_depth, isodepth
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.training import roofline
from looped_jax.training.roofline import chip_of

V5E = chip_of("v5e:2x4")
DATA = {"data": 8, "fsdp": 1, "tensor": 1}


def isodepth_run(**model):
    config = isodepth.get_config("r=4,s=10")
    config.model.update(model)
    return resolve(config)


def test_products_are_those_of_the_analytic_count():
    """Without recomputation only attention differs, of which half the square is computed."""
    run = isodepth_run(remat="none")
    found = roofline.roofline(run, DATA, V5E, "xla")
    counted = sum(part.flops for part in found.parts if part.name not in ("Newton-Schulz",))
    square = 3 * 4 * run.data.sequence_length * run.model.width * 20 * run.batch_tokens / 8
    assert counted == pytest.approx(
        found.model_flops - square * (1 - roofline.PLAIN_SHARE), rel=0.01
    )


def test_fused_attention_saves_the_scores_and_recomputation_costs():
    run = isodepth_run()
    plain = roofline.roofline(run, DATA, V5E, "xla")
    fused = roofline.roofline(run, DATA, V5E, "splash")
    assert "memory of attention" in plain.limit
    scores = plain.parts[1].bytes - fused.parts[1].bytes
    assert scores / 2**30 == pytest.approx(152, rel=0.15)  # of the compiler's program
    assert plain.utilisation < 0.55 < fused.utilisation < 1
    whole = roofline.roofline(isodepth_run(remat="none"), DATA, V5E, "splash")
    assert fused.utilisation < whole.utilisation


def test_every_mesh_does_the_same_work():
    run = isodepth_run(width=1024)
    split = roofline.roofline(run, {"data": 2, "fsdp": 2, "tensor": 2}, V5E, "splash")
    for one, other in zip(
        roofline.roofline(run, DATA, V5E, "splash").parts, split.parts, strict=True
    ):
        if one.name not in ("injection", "Newton-Schulz"):  # whole on each; filled up to devices
            assert one.flops == pytest.approx(other.flops), one.name
    assert set(split.collective_bytes) == {
        "gradients over data", "parameters over fsdp", "activations over tensor",
        "matrices over data",
    }  # fmt: skip
    huginn = resolve(elastic_depth.get_config("size=huginn"))
    assert "Newton-Schulz" not in roofline.roofline(huginn, DATA, V5E, "xla").table()


def test_a_chip_that_the_table_lacks():
    with pytest.raises(UserError, match=r"topology 'v9:2x4': chip 'v9'; allowed: v5e, v5p"):
        chip_of("v9:2x4")
