"""What an evaluation may be asked for."""

import dataclasses

import pytest

from configs import elastic_depth
from looped_jax.config import resolve
from looped_jax.errors import UserError
from looped_jax.evaluation.exits.suite import choose_carries
from looped_jax.evaluation.settings import Settings
from tests.evaluation.conftest import run_of
from tests.model.tiny import tiny, with_injection


def test_depths_by_default_reach_four_times_the_mean():
    for mean, expected in ((1, (1, 2, 3, 4)), (4, tuple(range(1, 17)))):
        run = resolve(elastic_depth.cpu(mean=max(mean, 2), depth="fixed"))
        if mean == 1:
            depth = dataclasses.replace(run.depth, mean=1.0, minimum=1, maximum=1)
            run = dataclasses.replace(run, depth=depth)
        assert Settings().chosen_depths(run) == expected
    deep = Settings().chosen_depths(resolve(elastic_depth.huginn(mean=32, depth="fixed")))
    assert deep[:64] == tuple(range(1, 65))
    assert deep[64:] == tuple(range(72, 129, 8))
    assert Settings().chosen_recurrences(resolve(elastic_depth.get_config("mean=6"))) == 12


def test_the_lane_table_bounds_the_depth():
    run = run_of(with_injection("hyperconnect", recurrences=3))
    assert Settings().chosen_depths(run) == (1, 2, 3)
    assert Settings().chosen_recurrences(run) == 3
    with pytest.raises(UserError, match=r"depths has 4; allowed .*: up to 3, the rows of its lane"):
        Settings(depths=(1, 4)).chosen_depths(run)
    with pytest.raises(UserError, match=r"recurrences has 4; allowed .*: up to 3"):
        Settings(recurrences=4).chosen_recurrences(run)
    assert choose_carries((), run.model) == ["full_depth"]
    with pytest.raises(UserError, match=r"'carry'; allowed with hyperconnections: full_depth"):
        choose_carries(("carry",), run.model)


def test_one_loop_cannot_be_compared():
    run = run_of(tiny())
    with pytest.raises(UserError, match="recurrences = 1; allowed: 2 loops or more"):
        Settings(recurrences=1).chosen_recurrences(run)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depths": (4, 0)}, "depths has 0; allowed: 1 recurrence or more"),
        ({"recurrences": -1}, "recurrences = -1; allowed: 1 or more"),
        ({"epsilons": (0.1, 0.0)}, "epsilons has 0; allowed: above 0 nats"),
        ({"epsilons": (-1e-3,)}, "epsilons has -0.001; allowed: above 0 nats"),
        ({"epsilons": (float("nan"),)}, "epsilons has nan"),
        ({"epsilons": ()}, "epsilons is empty"),
        ({"max_windows": -1}, "max_windows = -1; allowed: 0"),
        ({"resamples": 1}, "resamples = 1; allowed: 2 or more"),
    ],
)
def test_errors(fields, message):
    with pytest.raises(UserError, match=message):
        Settings(**fields)


def test_an_unknown_carry():
    with pytest.raises(UserError, match="carry 'caryy'; allowed: carry, full_depth"):
        choose_carries(("caryy",), tiny())
