"""Scoring in which exited tokens leave gives what scoring in which they stay gives."""

import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.evaluation import exit_compact
from looped_jax.evaluation.exit_carry import exit_scorer
from looped_jax.evaluation.probe import Probe
from tests.evaluation.conftest import WHOLE, elastic, some_tokens
from tests.model.tiny import tiny, with_injection

R, CHUNK = 4, 64


@pytest.mark.parametrize(
    ("model", "policy", "threshold"),
    [
        (elastic(**WHOLE, max_length=32), "kl", 0.3),
        (tiny(max_length=32, prelude_layers=0, coda_layers=0), "change", 0.6),
    ],
    ids=["kl", "QK norm, change"],
)
def test_it_equals_scoring_with_carried_keys_and_values(
    model, policy, threshold, trained, monkeypatch
):
    monkeypatch.setattr(exit_compact, "BUCKETS", (1.0, 0.5))
    run = trained(model)
    tokens = some_tokens(model, (3, 25))
    weights = np.random.default_rng(0).normal(size=model.width).astype(np.float32)
    probe = Probe(weights, np.float32(0))
    found = exit_compact.score_compactly(
        model, run.params, tokens, policy, probe, threshold, recurrences=R, chunk=CHUNK
    )
    scorer = exit_scorer(model, policy, "carry", R, CHUNK, run.mesh)
    mask = np.ones((3, 24), bool)
    expected, _ = scorer(run.params, tokens, mask, probe, jnp.float32(threshold))
    assert len(np.unique(expected.loop)) > 1  # tokens really leave at different loops
    np.testing.assert_array_equal(found.loop, expected.loop)
    np.testing.assert_allclose(found.nats, expected.nats, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.argmax, expected.argmax)


@pytest.mark.parametrize(
    ("model", "policy"),
    [(elastic(), "entropy"), (with_injection("hyperconnect"), "change")],
)
def test_what_it_cannot_run(model, policy):
    with pytest.raises(ValueError, match="allowed: "):
        exit_compact.score_compactly(
            model, {}, some_tokens(model), policy, Probe(0, 0), 0.1, recurrences=R, chunk=CHUNK
        )
