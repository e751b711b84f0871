"""One rule on the held-out text, and the rules that the exits suite measures."""

import dataclasses

import jax
import numpy as np
import pytest

from looped_jax import parallel
from looped_jax.adaptive.calibration import Calibration, rule_of
from looped_jax.errors import UserError
from looped_jax.evaluation.exits.calibrate import calibrate, fit_prior
from looped_jax.evaluation.exits.recorder import signal_recorder
from looped_jax.evaluation.exits.rule_loss import loss_with_exits
from looped_jax.evaluation.scored.windows import score
from looped_jax.evaluation.shown import exit_rule
from tests.evaluation.conftest import elastic
from tests.model.tiny import with_injection

MODEL = elastic(max_recurrences=4, recurrences=4)


def test_a_rule_beside_full_depth(trained):
    run = trained(MODEL, max_windows=16)
    never = loss_with_exits(run, "change:-1")
    assert never["loss"] == pytest.approx(never["full_depth_loss"], abs=1e-6)
    assert never["mean_loops"] == never["full_depth"] == 4
    assert never["over_full_depth"] == pytest.approx(0, abs=1e-6)
    assert never["over_full_depth_standard_error"] < 1e-6
    assert never["uniform_depth_of_equal_loss"] <= 4
    assert never["flops_over_full_depth"] == pytest.approx(1, rel=0.01)

    at_once = loss_with_exits(run, "change:9,most=3")
    assert at_once["mean_loops"] == at_once["uniform_depth_of_equal_loss"] == 1
    assert at_once["full_depth"] == 3
    assert at_once["flops_over_full_depth"] < 1
    assert at_once["over_full_depth"] == pytest.approx(
        at_once["loss"] - at_once["full_depth_loss"], abs=1e-6
    )
    assert "exit change:9,most=3: " in exit_rule(at_once)
    assert "1 loops for every token have a loss as low" in exit_rule(at_once)


def test_two_devices_score_what_one_does(trained):
    one = trained(MODEL, max_windows=16)
    found = loss_with_exits(one, "change:0.9")
    assert 1 < found["mean_loops"] < 4
    mesh = parallel.mesh_from_text("data:2,fsdp:1,tensor:1", jax.devices()[:2])
    with parallel.active(mesh):
        both = loss_with_exits(dataclasses.replace(one, mesh=mesh), "change:0.9")
    for name in ("loss", "full_depth_loss", "mean_loops"):
        assert both[name] == pytest.approx(found[name], rel=1e-6), name


def test_measured_rules_are_chosen_from(trained):
    run = trained(MODEL, max_windows=16)
    recorder = signal_recorder(MODEL, ("change",), 4, run.mesh)
    recorded, text = score(run, recorder, "", None, windows=range(8))
    losses = [4.0, 3.0, 2.0, 1.0]
    found = calibrate(run, ["change"], recorded, text.token, None, 4, range(8, 16), losses)
    assert found.uniform_losses == losses
    assert {each.signal for each in found.measured} == {"change"}
    assert len({each.mean_loops for each in found.measured}) > 1
    for each in found.measured:
        assert 1 <= each.mean_loops <= 4
        assert each.excess == pytest.approx(each.loss - found.full_depth_loss, abs=1e-5)
        assert each.excess_high >= each.excess
    found = dataclasses.replace(found, fitted={})
    found.write(run.folder.path)
    assert Calibration.read(run.folder.path).measured == found.measured
    rule, _ = rule_of(f"auto:{max(each.excess_high for each in found.measured)}", run.folder.path)
    assert rule.threshold == min(found.measured, key=lambda each: each.flops).threshold


def test_the_prior_is_the_mean_of_each_id():
    change_RN = np.array([[5.0, 0.1, 0.1, 5.0], [0.1, 0.1, 0.1, 5.0], [0.1] * 4, [0.1] * 4])
    loops_V = fit_prior(change_RN, np.array([7, 8, 8, 9]), MODEL)
    assert loops_V.shape == (MODEL.vocab_size,)
    assert loops_V[8] < loops_V[7] < loops_V[9]


def test_what_is_refused(trained):
    with pytest.raises(UserError, match=r"has no exits.json; make it with"):
        loss_with_exits(trained(MODEL), "auto:0.005")
    with pytest.raises(UserError, match="exit with injection 'hyperconnect'"):
        loss_with_exits(trained(with_injection("hyperconnect")), "change:0.9")
