"""Rules that are chosen by what was measured, and what is said where none can be."""

import dataclasses

import numpy as np
import pytest

from looped_jax.adaptive.calibration import Calibration, Measured, rule_of
from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.signals import Probe
from looped_jax.errors import UserError

FULL = 100.0


def measured(signal, threshold, flops, excess_high):
    return Measured(signal, threshold, 2.0, flops, 3.0, excess_high - 0.001, excess_high)


CALIBRATION = Calibration(
    recurrences=8, full_depth_loss=3.0, full_depth_flops=FULL, tokens=64,
    uniform_losses=[3.2, 3.01, 3.0, 2.99, 3.0, 3.0, 3.0, 3.0],
    measured=[
        measured("change", 0.5, 20.0, 0.04), measured("change", 0.1, 50.0, 0.004),
        measured("probe", -1.0, 45.0, 0.003), measured("accel", 1e-6, 120.0, 0.0),
    ],
    fitted={"probe": Probe(np.ones(4, np.float32), np.float32(0.5)),
            "prior": np.array([1.5, 2.0], np.float32)},
)  # fmt: skip


def test_it_is_kept_in_the_run_folder(tmp_path):
    CALIBRATION.write(tmp_path)
    found = Calibration.read(tmp_path)
    assert found.measured == CALIBRATION.measured
    assert found.recurrences == 8
    np.testing.assert_array_equal(found.fitted["probe"].weights, np.ones(4))
    np.testing.assert_array_equal(found.fitted["prior"], [1.5, 2.0])


def test_the_cheapest_rule_that_is_surely_good_enough(tmp_path):
    CALIBRATION.write(tmp_path)
    rule, fitted = rule_of("auto:0.005", tmp_path)
    assert rule == Rule("probe", -1.0, most=8)
    assert fitted.bias == 0.5
    assert rule_of("auto:0.05", tmp_path) == (Rule("change", 0.5, most=8), None)
    assert rule_of("change:0.3,every=2", tmp_path) == (Rule("change", 0.3, every=2), None)


def test_the_uniform_depth_that_loses_no_more():
    assert CALIBRATION.uniform_depth_as_good_as(Rule("change", 0.1, most=8)) == 3
    assert CALIBRATION.uniform_depth_as_good_as(Rule("change", 0.1)) is None  # not as measured
    worse = dataclasses.replace(CALIBRATION, uniform_losses=[3.1] * 8)
    assert worse.uniform_depth_as_good_as(Rule("change", 0.1, most=8)) is None


def test_what_is_refused(tmp_path):
    for text in ("auto:0.005", "probe:0.1"):
        with pytest.raises(UserError, match=rf"exit '{text}': .* has no exits.json; make it with"):
            rule_of(text, tmp_path)
    CALIBRATION.write(tmp_path)
    with pytest.raises(UserError, match=r"auto:0.001 is reached by no threshold up to loop 8 at"):
        rule_of("auto:0.001", tmp_path)
    with pytest.raises(UserError, match=r"exit 'auto:small'; allowed: auto:NATS"):
        rule_of("auto:small", tmp_path)
    dataclasses.replace(CALIBRATION, fitted={}).write(tmp_path)
    with pytest.raises(UserError, match=r"has no fitted probe; allowed: change, accel, head_kl"):
        rule_of("probe:0.1", tmp_path)
