"""Speeds are medians of what a clock says, warm-ups left out."""

import numpy as np

from looped_jax.evaluation.readout import throughput as module
from looped_jax.evaluation.readout.throughput import throughput, timed
from looped_jax.model.accounting import forward_flops_per_token
from tests.evaluation.conftest import T, elastic


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_warm_ups_do_not_count_and_depths_alternate():
    clock, calls, rounds = Clock(), [], []

    def forward(depth):
        slow = 100.0 if len(calls) < module.WARM_UPS * 3 else 0.0
        calls.append(depth)
        clock.now += depth + slow

    seconds = timed(forward, (1, 2, 4), rounds.append, clock)
    np.testing.assert_allclose(seconds, np.tile([1.0, 2.0, 4.0], (module.REPEATS, 1)))
    assert calls == [1, 2, 4] * (module.WARM_UPS + module.REPEATS)
    assert rounds == list(range(1, len(calls) // 3 + 1))


def test_of_a_model(trained, monkeypatch):
    run = trained(elastic())
    monkeypatch.setattr(module, "timed", lambda forward, depths, *_: np.array([[1.0], [2], [4]]))
    found = throughput(run, [3])
    tokens = run.run.evaluation.batch_size * T
    assert found["tokens_per_second"] == [tokens / 2]
    assert found["quartiles"] == [[tokens * 3 / 8], [tokens * 3 / 4]]
    assert found["flops_per_token"] == [forward_flops_per_token(run.run.model, T, 3)]
    assert found["device"] == "1 x cpu"
