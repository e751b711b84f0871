import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from configs import base
from looped_jax import config as configs
from looped_jax.errors import UserError
from looped_jax.model.accounting import count_parameters
from looped_jax.training.optimizer import GROUPS

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(p.stem for p in (ROOT / "configs").glob("*.py") if p.stem != "__init__")
STUDIES = sorted(p.stem for p in (ROOT / "configs/studies").glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_resolves_builds_and_round_trips_through_json(name):
    config = importlib.import_module(f"configs.{name}").get_config()
    run = configs.resolve(config)
    assert run.steps >= 1
    assert count_parameters(run.model).total > 0
    assert configs.resolve_json(json.loads(json.dumps(configs.to_json(config)))) == run


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_runs_of_distinct_names_that_resolve(name):
    runs = importlib.import_module(f"configs.studies.{name}").get_runs()
    assert len({run.name for run in runs}) == len(runs) > 1
    assert {run.study for run in runs} == {name}
    for run in runs[:: max(1, len(runs) // 8)]:
        assert configs.resolve(run).steps >= 1


def test_steps_tokens_and_flops_are_one_budget():
    c = base.get_config()
    by_tokens = configs.resolve(c)
    assert by_tokens.steps == round(2e7 / (128 * 16))
    c.budget.tokens, c.budget.steps = 0.0, by_tokens.steps
    assert configs.resolve(c).steps == by_tokens.steps
    c.budget.steps, c.budget.flops = 0, by_tokens.steps * 2048 * by_tokens.flops_per_token
    assert configs.resolve(c).steps == by_tokens.steps


def test_width_carries_heads_and_hidden_units_with_it():
    c = base.get_config()
    c.model.width = 128
    model = configs.resolve(c).model
    assert (model.heads, model.mlp_hidden) == (4, 512)


def _set(path, value):
    def change(c):
        *parents, key = path.split(".")
        for parent in parents:
            c = c[parent]
        with c.unlocked(), c.ignore_type():
            c[key] = value

    return change


SAMPLED = base.lognormal_poisson_depth(mean=3.0, sigma=0.5, minimum=1, maximum=4)
MISFITS = [
    ({"budget.steps": 5}, r"budget.steps = 5, budget.tokens = 20000000.0 given; allowed: exactly"),
    ({"budget.tokens": 0.0}, "no budget given; allowed: exactly one of"),
    ({"budget.tokens": 1.0}, "budget.tokens = 1 is less than one step of 2048 tokens"),
    ({"budget.tokens": -1.0}, "budget.tokens = -1.0; allowed: at least 0"),
    ({"model.widht": 3}, "model.widht is not a config key; did you mean 'width'"),
    ({"nonsense": 3}, "config.nonsense is not a config key"),
    ({"model.width": 65}, "model.width = 65 divided into heads"),
    ({"optimizer.kind": "sgd"}, "optimizer.kind = 'sgd'; allowed: 'muonh_adamw', 'adamw'"),
    ({"optimizer.transfer.d_ref": 0}, "optimizer.transfer.d_ref = 0; allowed: at least 1"),
    ({"data.sequence_length": 129}, "data.sequence_length = 129; allowed: up to model.max_length"),
    ({"data.batch_size": 0}, "data.batch_size = 0; allowed: at least 1"),
    ({"seed": -1}, "seed = -1; allowed: at least 0 and at most 4,294,967,295"),
    ({"seed": 2**32}, "seed = 4294967296; allowed: at least 0 and at most 4,294,967,295"),
    ({"seed": True}, "seed = True is a bool; allowed: int"),
    ({"name": 3}, "name = 3 is a int; allowed: str"),
    ({"data.batch_size": 8.5}, "data.batch_size = 8.5 is a float; allowed: int"),
    ({"data.verify": "yes"}, "data.verify = 'yes' is a str; allowed: bool"),
    ({"optimizer.b1": 5.0}, "optimizer.b1 = 5.0; allowed: at least 0 and below 1"),
    ({"optimizer.momentum": -3.0}, "optimizer.momentum = -3.0; allowed: at least 0 and below 1"),
    ({"optimizer.eps": 0.0}, "optimizer.eps = 0.0; allowed: above 0"),
    ({"optimizer.rates.norm": -1.0}, "optimizer.rates.norm = -1.0; allowed: at least 0"),
    ({"optimizer.rates.nrom": 1.0}, "optimizer.rates.nrom is not .*; did you mean 'norm'"),
    ({"optimizer.warmdown_share": 1.5}, "optimizer.warmdown_share = 1.5; allowed: at least 0 and"),
    ({"log.every_steps": 0}, "log.every_steps = 0; allowed: at least 1"),
    ({"evaluation.max_windows": -1}, "evaluation.max_windows = -1; allowed: at least 0"),
    ({"mesh": 8}, "mesh = 8 is a int; allowed: str"),
    ({"loss": 3}, "loss = 3 is a int; allowed: LossConfig"),
    ({"profile.steps": (3,)}, r"profile.steps = \(3,\); allowed: \(first, last\), or \(\)"),
    ({"profile.steps": (3, 10**6)}, r"profile.steps = \(3, 1000000\); allowed: up to step 9766"),
    ({"profile.steps": (3, 4.0)}, r"profile.steps\[1\] = 4.0 is a float; allowed: int"),
    ({"loss.supervision": "some"}, "loss.supervision = 'some'; allowed: 'last', 'every', 'by_l"),
    ({"loss.loop_weights": (1.0,)}, "loss.loop_weights = .* allowed with loss.supervision 'last'"),
    ({"loss.supervision": "every", "loss.loop_weights": (1.0,)}, "has 1 entries; allowed: .* = 4"),
    (
        {"loss.supervision": "every", "loss.loop_weights": (0.5, -0.5, 0.5, 0.5)},
        r"loss.loop_weights\[1\] = -0.5; allowed: at least 0",
    ),
    (
        {"loss.supervision": "every", "loss.loop_weights": (0.0, 0.0, 0.0, 0.0)},
        "loss.loop_weights = .*; allowed: at least one above 0",
    ),
    ({"loss.norm_penalty": float("inf")}, "loss.norm_penalty = inf; allowed: a finite number"),
    ({"loss.supervision": "every", "model.backprop_recurrences": 2},
     "model.backprop_recurrences = 2; allowed with a loss at every loop"),
    ({"depth": SAMPLED, "loss.supervision": "every"}, "depth.kind = 'lognormal_poisson'; allowed"),
    ({"depth": SAMPLED, "model.max_recurrences": 5, "depth.maximum": 6},
     "depth.maximum = 6; allowed: up to model.max_recurrences = 5"),
    ({"depth": SAMPLED, "model.injection": "hyperconnect", "model.lanes": 2},
     "depth.kind = 'lognormal_poisson'; allowed with hyperconnections: 'fixed'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), MISFITS)
def test_what_does_not_fit_is_refused_by_name(changes, message):
    c = base.get_config()
    for path, value in changes.items():
        _set(path, value.copy_and_resolve_references() if hasattr(value, "keys") else value)(c)
    with pytest.raises(UserError, match=message):
        configs.resolve(c).steps  # noqa: B018


@pytest.mark.parametrize(
    ("injection", "follows"),
    [("additive", ("zeros", 0)), ("hyperconnect", ("input", 2)), ("diagonal", ("input", 0))],
)
def test_a_chosen_injection_brings_what_was_published_with_it(injection, follows):
    c = base.get_config()
    c.model.injection = injection
    model = configs.resolve(c).model
    assert (model.initial_state, model.lanes) == follows
    c.model.initial_state = "input"
    assert configs.resolve(c).model.initial_state == "input"


def test_every_parameter_group_has_a_rate():
    assert {field.name for field in dataclasses.fields(configs.Rates)} == set(GROUPS)


def test_the_quickstart_names_its_cells():
    quickstart = importlib.import_module("configs.quickstart")
    assert quickstart.get_config("r=8,width=48").model.recurrences == 8
    with pytest.raises(ValueError, match=r"'depth=3' in .*; allowed: .* r, width, flops"):
        quickstart.get_config("depth=3")
