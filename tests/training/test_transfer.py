"""The rules that carry learning rates to another width, batch and number of tokens."""

from dataclasses import replace

import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.training.transfer import Transfer, reference_tokens

PUBLISHED = Transfer(
    d_ref=640,
    batch_ref=262_144,
    tokens_ref=1e9,
    width_exponent=-0.5,
    data_exponent=-0.32,
    matrix_batch_exponent=0.558,
    adamw_batch_exponent=0.558,
)
BASE = {"matrix": 0.014, "embedding": 0.3, "unembedding": 0.004, "norm": 0.005, "lane": 0.01}
REFERENCE = {"d_model": 640, "batch_tokens": 262_144, "tokens": 1e9}


def rates(transfer=PUBLISHED, **changes):
    return transfer.scale(BASE, **(REFERENCE | changes)).rates


def test_the_reference_keeps_its_rates():
    assert rates() == BASE


@pytest.mark.parametrize(
    ("change", "matrix", "embeddings", "others"),
    [
        ({"d_model": 2560}, 1.0, 0.5, 0.5),
        ({"tokens": 1e11}, 100**-0.32, 1.0, 1.0),
        ({"batch_tokens": 2 * 262_144}, 2**0.558, 2**0.558, 1.0),
        (
            {"d_model": 160, "tokens": 1e8, "batch_tokens": 512},
            10**0.32 * 512**-0.558,
            2 * 512**-0.558,
            2.0,
        ),
    ],
)
def test_each_rule(change, matrix, embeddings, others):
    scaled = rates(**change)
    for group, base in BASE.items():
        factor = {"matrix": matrix, "embedding": embeddings, "unembedding": embeddings}.get(
            group, others
        )
        np.testing.assert_allclose(scaled[group], base * factor, rtol=1e-12, err_msg=group)


def test_the_batch_rule_can_be_switched_off_for_adamw_alone():
    scaled = rates(replace(PUBLISHED, adamw_batch_exponent=0.0), batch_tokens=512)
    assert scaled["embedding"] == BASE["embedding"]
    assert scaled["matrix"] < BASE["matrix"]


def test_tokens_of_the_reference_run():
    assert reference_tokens(1_000_000, 10) == 1e7


def test_table():
    table = PUBLISHED.scale(BASE, d_model=2560, batch_tokens=262_144, tokens=1e11).table()
    header, columns, *rows = table.splitlines()
    assert "width 2,560 (reference 640)" in header
    assert "batch 262,144 tokens (262,144)" in header
    assert "run 1e+11 tokens (1e+09)" in header
    assert " ".join(columns.split()) == "group base × width × data × batch = rate"
    assert rows[0].split() == ["matrix", "0.014", "1", "0.2291", "1", "0.003207"]
    assert rows[1].split() == ["embedding", "0.3", "0.5", "1", "1", "0.15"]
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(PUBLISHED, d_ref=0), r"d_ref is 0; it must be positive"),
        (lambda: replace(PUBLISHED, tokens_ref=float("nan")), r"tokens_ref is nan"),
        (lambda: replace(PUBLISHED, data_exponent=float("inf")), r"data_exponent is inf"),
        (lambda: rates(batch_tokens=-1), r"batch_tokens is -1; it must be positive"),
        (lambda: reference_tokens(0, 10), r"executed_parameters is 0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(UserError, match=message):
        call()
