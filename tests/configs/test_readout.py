"""The readout configs resolve, and are the models and conditions that they say."""

import itertools
import json

import jax
import pytest

from configs import readout
from configs.readout import Condition
from configs.studies import readout_quickstart
from looped_jax.config import resolve, resolve_json, to_json
from looped_jax.model.accounting import abstract_parameters, count_parameters
from looped_jax.training.objective import objective

CHOICES = [
    f"loss={loss},readout={norm},between={between}"
    for loss, norm, between in itertools.product(
        ("every", "last"), ("rmsnorm", "raw", "last"), ("none", "rmsnorm")
    )
]


@pytest.mark.parametrize("arg", [*CHOICES, "", "penalty=0.01,loops=3", "size=44m", "size=ouro"])
def test_they_resolve(arg):
    config = readout.get_config(arg)
    run = resolve(config)
    assert resolve_json(json.loads(json.dumps(to_json(config)))) == run
    model = run.model
    assert (model.prelude_layers, model.coda_layers, model.injection) == (0, 0, "passthrough")
    assert run.depth.minimum == run.depth.maximum == model.recurrences
    assert (run.optimizer.decay, run.optimizer.clip_norm) == (0.01, 1.0)


def test_conditions_change_what_they_name():
    one = lambda **keys: resolve(readout.run("cpu", Condition(**keys)))
    assert one().loss.supervision == "every"
    assert one(loss="last").loss.supervision == "last"
    norms = {name: one(readout=name).model.readout_norm for name in ("rmsnorm", "raw", "last")}
    assert norms == {"rmsnorm": "every", "raw": "none", "last": "last"}
    assert one(penalty=0.02).loss.norm_penalty == 0.02
    assert one(between="rmsnorm").model.state_norm == "between"
    assert one().model.state_norm == "none"
    assert Condition("last", "raw", 0.01, "rmsnorm").name == "last_raw_penalty0.01_between"


@pytest.mark.parametrize(("size", "millions"), [("44m", 44), ("129m", 129), ("1.4b", 1384)])
def test_the_published_sizes(size, millions):
    run = resolve(readout.get_config(f"size={size}"))
    n = count_parameters(run.model)
    assert round(n.total / 1e6) == millions
    assert (n.prelude, n.coda, n.injection, n.head) == (0, 0, 0, 0)
    assert (run.optimizer.rate, run.optimizer.b2, run.optimizer.warmdown_share) == (3e-4, 0.999, 0)
    assert (run.model.vocab_size, run.data.sequence_length) == (20_000, 256)


@pytest.mark.parametrize(("size", "millions"), [("44m_gpt2", 44), ("129m_gpt2", 129)])
def test_sizes_with_the_tokens_of_gpt2(size, millions):
    run = resolve(readout.get_config(f"size={size}"))
    assert round(count_parameters(run.model).total / 1e6) == millions


def test_a_large_model_builds_and_has_a_gradient_everywhere():
    """Shapes only: nothing is allocated."""
    run = resolve(readout.get_config("size=ouro,between=rmsnorm"))
    params = abstract_parameters(run.model)
    assert count_parameters(run.model).total == pytest.approx(1.43e9, rel=0.01)
    tokens = jax.ShapeDtypeStruct((2, 65), "int32")

    def loss(params, tokens_BT):
        return objective(run.model, run.loss, params, tokens_BT, run.model.recurrences, {})[0]

    gradient = jax.eval_shape(jax.grad(loss), params, tokens)
    assert jax.tree.map(lambda x: x.shape, gradient) == jax.tree.map(lambda x: x.shape, params)


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("size=7b", "size = '7b'; allowed: cpu, 44m, 129m, 1.4b, 44m_gpt2"),
        ("loss=all", "loss = 'all'; allowed: every, last"),
        ("readout=layernorm", "readout = 'layernorm'; allowed: rmsnorm, raw, last"),
        ("penalty=-1", "penalty = -1.0; allowed: 0 or more"),
        ("loops=few", "loops = 'few'; allowed: a whole number"),
        ("norm=raw", "'norm=raw' in the argument 'norm=raw'; allowed: KEY=VALUE with size, loss"),
    ],
)
def test_errors(arg, message):
    with pytest.raises(ValueError, match=message):
        readout.get_config(arg)


def test_the_study_compares_like_with_like():
    runs = [resolve(config) for config in readout_quickstart.get_runs()]
    assert len({run.name for run in runs}) == len(runs) == 18
    assert {run.study for run in runs} == {"readout_quickstart"}
    assert len({run.steps for run in runs}) == len({run.optimizer for run in runs}) == 1
    # But for the scales of their norms the models are equal.
    assert len({count_parameters(run.model).n_rec for run in runs}) == 1
    by_condition = {(run.loss, run.model): set() for run in runs}
    for run in runs:
        by_condition[run.loss, run.model].add(run.seed)
    assert len(by_condition) == 6
    assert all(seeds == {0, 1, 2} for seeds in by_condition.values())
