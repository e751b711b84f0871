"""Where tokens settle, and the tables of it."""

import numpy as np
import pandas as pd
import pytest

from looped_jax.evaluation.convergence import (
    convergence_suite,
    groups,
    per_loop,
    settled,
    settling_loop,
)
from looped_jax.evaluation.scored.bootstrap import Bootstrap
from looped_jax.evaluation.scored.windows import ScoredText
from tests.evaluation.conftest import elastic


def test_settling_is_for_good():
    inf = np.inf
    kl = np.array(
        [
            [inf, inf, inf, inf, inf],
            [0.1, 9.0, 9.0, 0.1, 0.1],
            [0.1, 0.1, 9.0, 9.0, np.nan],
            [0.1, 0.1, 9.0, 0.1, 0.1],
        ]
    )
    # From loop 2; from 3; never; below at 2 but not for good, so from 4; a NaN counts as above.
    np.testing.assert_array_equal(settling_loop(kl, 1.0), [2, 3, 5, 4, 4])
    np.testing.assert_array_equal(settling_loop(kl, 0.1), [5] * 5)


def test_a_smaller_epsilon_never_settles_earlier():
    kl = np.exp(np.random.default_rng(0).normal(size=(6, 200)) * 2)
    loops = [settling_loop(kl, epsilon) for epsilon in (10.0, 1.0, 0.1)]
    assert (loops[0] <= loops[1]).all()
    assert (loops[1] <= loops[2]).all()


def text_of(units, per_unit):
    window = np.repeat(np.arange(units), per_unit)
    return ScoredText(window, *[np.zeros(len(window), int)] * 4)


def test_distribution_of_settling_loops():
    bootstrap = Bootstrap(text_of(50, 4), 100, 0)
    settled_N = np.tile([2, 3, 3, 6], 50)  # of R = 5 loops, so a quarter has not settled
    first = np.arange(200) % 4 == 0
    found = settled(bootstrap, settled_N, 5, 2, {"kind": {"first": first, "rest": ~first}})
    assert found["tokens"] == 200
    assert found["histogram"] == [50, 100, 0, 0]  # loops 2 … 5
    assert found["unsettled"] == 50
    assert found["median"]["value"] == 3
    assert found["tail_at_mean"]["value"] == 0.75  # not settled by loop 2
    assert found["by_kind"]["first"]["histogram"] == [50, 0, 0, 0]
    assert found["by_kind"]["first"]["tail_at_mean"]["value"] == 0
    assert found["by_kind"]["rest"]["tokens"] == 150


def test_half_of_the_tokens_unsettled_shows_in_the_median():
    bootstrap = Bootstrap(text_of(50, 2), 20, 0)
    found = settled(bootstrap, np.full(100, 6), 5, 3, {})
    assert (found["median"]["value"], found["unsettled"]) == (6, 100)
    assert found["tail_at_mean"]["value"] == 1


def test_numbers_of_each_loop():
    values = np.stack([np.arange(200.0), np.arange(200.0) / 10])
    found = per_loop(Bootstrap(text_of(50, 4), 50, 0), values)
    assert [row["value"] for row in found["mean"]] == pytest.approx([99.5, 9.95])
    assert [row["value"] for row in found["median"]] == pytest.approx([99, 9.9], rel=0.02)
    assert found["quantiles"]["0.05"] == pytest.approx([9.95, 0.995])


def test_groups_hold_every_token_once():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "type": rng.choice(["number", "word start", "other"], 500),
            "nats": rng.random(500),
            "position": np.arange(500) % 8,
            "count": rng.integers(0, 3, 500),  # many ties
        }
    )
    found = groups(table)
    assert set(found) == {"type", "loss", "position", "frequency"}
    for grouping, members in found.items():
        total = np.sum(list(members.values()), axis=0)
        assert (total == 1).all(), grouping
    sizes = [keep.sum() for keep in found["loss"].values()]
    assert len(sizes) == 5
    assert max(sizes) - min(sizes) <= 2
    np.testing.assert_array_equal(table["type"] == "number", found["type"]["number"])
    constant = groups(table.assign(nats=1.0))
    assert [keep.sum() for keep in constant["loss"].values()] == [500]


def test_the_suite_and_its_table(trained):
    run = trained(elastic(), epsilons=(0.5, 0.05), recurrences=5)
    result = convergence_suite(run)
    table = pd.read_parquet(run.folder.path / result["table"])
    assert len(table) == result["tokens"] == len(run.data.validation) - 1
    text = "".join(table["text"][table["type"] != "other"])
    assert text[1:40] in (run.data.folder.parent / "held_out.txt").read_text("utf-8")
    assert set(table["type"]) >= {"word start", "word continuation", "punctuation", "other"}

    kl = np.stack(table["kl"].to_numpy())
    assert kl.shape == (len(table), 4)
    assert result["loops"] == [2, 3, 4, 5]
    np.testing.assert_allclose([row["value"] for row in result["kl"]["mean"]], kl.mean(0), 1e-5)
    argmax = np.stack(table["argmax"].to_numpy())
    changed = (argmax[:, 1:] != argmax[:, :-1]).mean(0)
    np.testing.assert_allclose([row["value"] for row in result["argmax_changed"]], changed)
    for first, row in zip(table["argmax_settled"], argmax, strict=True):
        assert (row[first - 1 :] == row[-1]).all()
        assert first == 1 or row[first - 2] != row[-1]

    wide, tight = result["settled"]
    assert (wide["epsilon"], tight["epsilon"]) == (0.5, 0.05)
    np.testing.assert_array_equal(
        wide["histogram"],
        [(settling_loop(np.vstack([kl[:, 0], kl.T]), 0.5) == i).sum() for i in (2, 3, 4, 5)],
    )
    assert sum(wide["histogram"]) + wide["unsettled"] == len(table)
    of_types = [part["tokens"] for part in wide["by_type"].values()]
    assert sum(of_types) == len(table)
