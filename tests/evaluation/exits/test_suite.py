"""The exits suite as a whole."""

import numpy as np
import pandas as pd
import pytest

from looped_jax.errors import UserError
from looped_jax.evaluation.exits.suite import exits_suite, split
from tests.evaluation.conftest import elastic


def test_the_suite_and_its_table(trained):
    run = trained(
        elastic(), recurrences=4, epsilons=(0.3, 0.03), policies=("uniform", "kl", "oracle_kl"),
        carries=("carry", "full_depth"), max_windows=20,
    )  # fmt: skip
    result = exits_suite(run)
    assert result["calibration_windows"] == [0, 10]
    assert result["scored_windows"] == [10, 20]
    assert result["tokens"] == 10 * 8
    points = result["points"]
    assert len(points) == 2 * (4 + 2 + 2)
    by = {(p["policy"], p["carry"], p["threshold"]): p for p in points}
    for depth in (1, 2, 3, 4):
        carried, whole = by["uniform", "carry", depth], by["uniform", "full_depth", depth]
        assert carried | {"carry": ""} == whole | {"carry": ""}
        assert carried["mean_loops"]["value"] == depth
    assert by["uniform", "carry", 4]["against_full_depth"]["value"] == 0
    assert by["uniform", "carry", 4]["agreement"]["value"] == 1
    for carry in ("carry", "full_depth"):
        wide, tight = by["kl", carry, 0.3], by["kl", carry, 0.03]
        assert 2 <= wide["mean_loops"]["value"] <= tight["mean_loops"]["value"] <= 4
    # The recorded trajectory saves nothing, and testing costs more than it saves.
    full = by["uniform", "full_depth", 4]["flops_per_token"]["value"]
    assert by["kl", "full_depth", 0.03]["flops_per_token"]["value"] > full
    costs = result["costs"]
    assert costs["tests"]["kl"] > costs["readout"] > 0

    table = pd.read_parquet(run.folder.path / result["table"])
    assert len(table) == len(points) * 10
    of_point = table[(table.policy == "kl") & (table.carry == "carry") & (table.threshold == 0.03)]
    found = by["kl", "carry", 0.03]
    for name, column in (("loss", "nats"), ("mean_loops", "loops"), ("flops_per_token", "flops")):
        assert found[name]["value"] == pytest.approx(of_point[column].sum() / 80)
    assert list(of_point["window"]) == list(range(10, 20))
    assert {row["policy"] for row in result["at_equal_quality"]} == {"uniform", "kl", "oracle_kl"}


def test_halves():
    with pytest.raises(UserError, match="1 window of held-out text; allowed: 2 or more"):
        split(_with_windows(1))
    assert split(_with_windows(5)) == (range(2), range(2, 5))


def _with_windows(n):
    class Stub:
        max_windows = n
        run = type("Run", (), {"name": "one", "data": type("Data", (), {"sequence_length": 8})})
        data = type("Data", (), {"validation": np.zeros(1000)})

    return Stub()
