"""ModelConfig refuses what does not fit together, each with a message that names key and value."""

import dataclasses
import re

import pytest

from looped_jax.model.config import CHOICES, ModelConfig, isodepth_split
from tests.model.tiny import BASE, INJECTIONS, READOUT, SANDWICH, tiny, with_injection

REFUSED = {
    "type": ({"width": 32.0}, "model.width = 32.0 is a float; allowed: int"),
    "bool is no int": ({"lanes": False}, "model.lanes = False is a bool; allowed: int"),
    "string": ({"softcap": "15"}, "model.softcap = '15' is a str; allowed: float"),
    "choice": ({"mlp": "gelu"}, "model.mlp = 'gelu'; allowed: relu2, gated_silu"),
    "too small": ({"core_layers": 0}, "model.core_layers = 0; allowed: at least 1"),
    "negative": ({"dropout": -0.1}, "model.dropout = -0.1; allowed: at least 0"),
    "not a number": ({"softcap": float("nan")}, "model.softcap = nan; allowed: a finite number"),
    "zero": ({"rope_base": 0.0}, "model.rope_base = 0.0; allowed: above 0"),
    "all dropped": ({"dropout": 1.0}, "model.dropout = 1.0; allowed: at least 0 and below 1"),
    "width that heads do not divide": (
        {"heads": 3, "head_dim": 10},
        "model.heads = 3 of head_dim 10 make 30; allowed: model.width = 32 divided into heads",
    ),
    "odd head": (
        {"width": 30, "head_dim": 15},
        "model.head_dim = 15; allowed with rotary positions: even",
    ),
    "depth above the trajectory": (
        {"recurrences": 9},
        "model.recurrences = 9; allowed: up to model.max_recurrences = 8",
    ),
    "window above the trajectory": (
        {"backprop_recurrences": 9},
        "model.backprop_recurrences = 9; allowed: 0 (all) to model.max_recurrences = 8",
    ),
    "one lane": (
        {"injection": "hyperconnect", "lanes": 1},
        "model.lanes = 1; allowed with hyperconnections: 2 or more lanes",
    ),
    "lanes without hyperconnections": (
        {"lanes": 2},
        "model.lanes = 2; allowed with injection 'linear': 0",
    ),
    "truncated lanes": (
        {"injection": "hyperconnect", "lanes": 2, "backprop_recurrences": 1},
        "model.backprop_recurrences = 1; allowed with hyperconnections: 0",
    ),
    "lanes from zeros": (
        {"injection": "hyperconnect", "lanes": 2, "initial_state": "zeros"},
        "model.initial_state = 'zeros'; allowed with hyperconnections: 'input'",
    ),
    "norm on the last lanes": (
        {"injection": "hyperconnect", "lanes": 2, "state_norm": "last"},
        "model.state_norm = 'last'; allowed with hyperconnections: 'every' or 'none'",
    ),
    "norm between lanes": (
        {"injection": "hyperconnect", "lanes": 2, "state_norm": "between"},
        "model.state_norm = 'between'; allowed with hyperconnections: 'every' or 'none'",
    ),
    "a loop that sees nothing": (
        {"injection": "passthrough", "initial_state": "zeros"},
        "model.initial_state = 'zeros'; allowed with injection 'passthrough': 'input'",
    ),
    "a norm shared with none": (
        {"share_state_and_final_norm": True, "readout_norm": "none"},
        "model.share_state_and_final_norm = True with state_norm 'every' and readout_norm 'none'",
    ),
    "init of a tied head": (
        {"tied_head": True},
        "model.head_init_std = 0.001; allowed with a tied head: 0.0",
    ),
}


@pytest.mark.parametrize("changes", [SANDWICH, READOUT, *INJECTIONS], ids=str)
def test_the_published_families_are_allowed(changes):
    config = with_injection(changes) if isinstance(changes, str) else tiny(**changes)
    assert ModelConfig.from_tree(dataclasses.asdict(config)) == config
    assert hash(config) == hash(dataclasses.replace(config))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}[^\n]*$"):
        tiny(**changes)


@pytest.mark.parametrize("key", CHOICES)
def test_every_choice_is_checked(key):
    with pytest.raises(ValueError, match=f"^model.{key} = 'other'; allowed: {CHOICES[key][0]}"):
        tiny(**{key: "other"})


def test_a_typo_names_the_nearest_key():
    with pytest.raises(ValueError, match=r"model\.widht is not a config key; did you mean 'width'"):
        ModelConfig.from_tree({**BASE, "widht": 32})


def test_nothing_has_a_hidden_default():
    incomplete = {key: value for key, value in BASE.items() if key not in ("mlp", "heads")}
    with pytest.raises(ValueError, match=r"model\.heads is missing.*'heads', 'mlp'"):
        ModelConfig.from_tree(incomplete)


def test_whole_numbers_are_floats_where_floats_are_meant():
    assert tiny(softcap=15) == tiny(softcap=15.0)
    assert isinstance(tiny(softcap=15).softcap, float)


def test_isodepth_split():
    assert isodepth_split(20, 2, 4) == (2, 4, 2)
    assert isodepth_split(20, 2, 16) == (2, 1, 2)
    assert isodepth_split(20, 2, 1) == (0, 20, 0)
    config = tiny(prelude_layers=2, core_layers=4, coda_layers=2, recurrences=4)
    assert config.effective_layers == 20


@pytest.mark.parametrize(
    ("effective", "ends", "recurrences", "allowed"),
    [(20, 2, 3, r"\[1, 2, 4, 8, 16\]"), (20, 2, 0, "1, 2"), (4, 2, 2, r"\[\]")],
)
def test_a_depth_that_r_does_not_divide(effective, ends, recurrences, allowed):
    with pytest.raises(ValueError, match=f"recurrences = {recurrences} does not.*{allowed}"):
        isodepth_split(effective, ends, recurrences)
