"""Parameters and FLOPs are the published counts, exactly; parts add up to the whole."""

import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from looped_jax.model import accounting
from looped_jax.model.config import isodepth_split
from looped_jax.model.lm import LoopedLM
from tests.model.tiny import READOUT, SANDWICH, tiny, with_injection

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "isodepth_accounting.json").read_text())
VARIANTS = {
    "linear": {},
    "noloop": {"injection": "passthrough"},
    "additive": {"injection": "additive", "initial_state": "zeros"},
    "hyperconnect": {"injection": "hyperconnect", "lanes": 2},
    "truncated": {},
}
LENGTH = 2048


def published(row):
    prelude, core, coda = isodepth_split(20, 2, row["r"])
    window = -(-row["r"] // 2) if row["variant"] == "truncated" else 0
    return tiny(
        **VARIANTS[row["variant"]],
        vocab_size=32_064,
        width=row["d_model"],
        heads=row["d_model"] // 64,
        head_dim=64,
        mlp_hidden=4 * row["d_model"],
        prelude_layers=prelude,
        core_layers=core,
        coda_layers=coda,
        recurrences=row["r"],
        backprop_recurrences=window,
        max_length=LENGTH,
    )


@pytest.mark.parametrize("rows", [ROWS[::5], pytest.param(ROWS, marks=pytest.mark.slow)])
def test_published_counts(rows):
    assert {row["variant"] for row in rows} == VARIANTS.keys()
    for row in rows:
        config = published(row)
        counts = accounting.count_parameters(config)
        assert {
            "wte": counts.embedding,
            "lm_head": counts.head,
            "prelude": counts.prelude,
            "recur_block": counts.core,
            "coda": counts.coda,
            "inject": counts.injection,
            "scalars": counts.norms,
            "total": counts.total,
            "flops_per_token": accounting.train_flops_per_token(config, LENGTH),
        } == {key: row[key] for key in row if key not in ("s", "d_model", "r", "variant")}, row


@pytest.mark.parametrize(
    "config",
    [
        with_injection("hyperconnect"),
        with_injection("diagonal"),
        tiny(**SANDWICH),
        tiny(**READOUT),
    ],
    ids=["hyperconnect", "diagonal", "sandwich", "readout"],
)
def test_parts_add_up_to_the_tree(config):
    rngs = {"params": jax.random.key(0), "state": jax.random.key(1)}
    tokens = jnp.zeros((1, 4), jnp.int32)
    params = nn.unbox(jax.eval_shape(LoopedLM(config).init, rngs, tokens)["params"])
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert accounting.count_parameters(config).total == total


def test_a_recurrence_costs_its_forward_three_times_inside_the_window_only():
    full = tiny()
    cost = lambda config, r: accounting.train_flops_per_token(config, 16, r)
    forward = lambda r: accounting.forward_flops_per_token(full, 16, r)
    one = forward(2) - forward(1)
    assert cost(full, 5) == 3 * forward(5)
    assert cost(full, 6) - cost(full, 5) == 3 * one
    truncated = tiny(backprop_recurrences=2)
    assert cost(truncated, 2) == cost(full, 2)
    assert cost(truncated, 6) - cost(truncated, 5) == one
    assert cost(truncated, None) == cost(truncated, 3)
    assert cost(full, 4.5) == (cost(full, 4) + cost(full, 5)) / 2


def test_a_look_at_one_exit_costs_coda_and_head():
    config, T = tiny(), 16
    layer = 2 * 12 * 32 * 32 + 2 * 2 * 32 + 4 * T * 32  # matrices, norm scales, attention
    assert accounting.readout_flops_per_token(config, T) == layer + 2 * 40 * 32
