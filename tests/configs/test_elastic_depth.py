"""The elastic-depth configs resolve, and are the models that they say."""

import json

import numpy as np
import pytest

from configs import elastic_depth
from configs.studies import elastic_quickstart
from looped_jax.config import resolve, resolve_json, to_json
from looped_jax.model.accounting import count_parameters
from looped_jax.training.depth import DepthSampler


@pytest.mark.parametrize(
    "arg",
    ["", "mean=8", "depth=fixed", "depth=uniform,mean=5", "size=huginn,mean=4", "size=86m"],
)
def test_they_resolve_and_draw_the_mean_they_name(arg):
    config = elastic_depth.get_config(arg)
    run = resolve(config)
    assert resolve_json(json.loads(json.dumps(to_json(config)))) == run
    published = "size" in arg  # whose sampler adds 1 to a draw of the mean
    assert run.depth.mean == run.model.recurrences + published
    assert run.depth.maximum <= run.model.max_recurrences
    depths, probabilities = DepthSampler(run.depth).distribution()
    assert depths @ probabilities == pytest.approx(run.depth.mean, rel=1e-9)


def test_the_published_model_has_its_size():
    model = resolve(elastic_depth.get_config("size=huginn")).model
    n = count_parameters(model)
    # arXiv:2502.05171: 1.5B in the loop (with the adapter), 1.5B around it, 0.5B or less embedded.
    np.testing.assert_allclose(n.core + n.injection, 1.64e9, rtol=0.01)
    np.testing.assert_allclose(n.prelude + n.coda, 1.58e9, rtol=0.01)
    assert n.total == pytest.approx(3.56e9, rel=0.01)
    assert (model.recurrences, model.max_recurrences, model.backprop_recurrences) == (32, 96, 8)
    assert n.head == 0


def test_a_model_with_the_published_totals():
    """arXiv:2607.14427: 85.6M parameters, 57.3M of them active, 12.9B tokens in 49,209 steps."""
    run = resolve(elastic_depth.get_config("size=86m"))
    n = count_parameters(run.model)
    assert (round(n.total / 1e5), round((n.total - n.embedding) / 1e5)) == (856, 573)
    assert (run.steps, round(run.steps * run.batch_tokens / 1e8)) == (49_209, 129)


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("size=gpu", "size = 'gpu'; allowed: cpu, 86m, huginn"),
        ("depth=poisson", "depth = 'poisson'; allowed: lognormal_poisson, uniform, fixed"),
        ("r=4", "'r=4' in the argument 'r=4'; allowed"),
    ],
)
def test_errors(arg, message):
    with pytest.raises(ValueError, match=message):
        elastic_depth.get_config(arg)


def test_the_study_compares_like_with_like():
    runs = [resolve(config) for config in elastic_quickstart.get_runs()]
    assert [(run.depth.kind, run.depth.mean) for run in runs] == [
        ("lognormal_poisson", 4.0),
        ("lognormal_poisson", 8.0),
        ("fixed", 4.0),
    ]
    assert len({run.name for run in runs}) == 3
    assert {run.study for run in runs} == {"elastic_quickstart"}
    assert len({count_parameters(run.model).total for run in runs}) == 1
    assert len({run.steps for run in runs}) == 1
