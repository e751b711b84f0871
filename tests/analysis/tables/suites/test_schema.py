"""Schemas: what each kind of type accepts, and where it says that a value is not so."""

from typing import Literal

import pytest

from analysis.tables.suites.parts import SUITES
from analysis.tables.suites.schema import Sized, declared_keys, first_problem
from tests.analysis import elastic_study, readout_study

OUTER = {
    "n": Sized(int, "R"),
    "rows": Sized([float], "R", 1),
    "inner": {...: {"x": float}},
    "pair": (float | None, float | None),
    "kind": Literal["a", "b"],
    "yes": bool,
    "many": Sized([{"x": float}], "K"),
}


GOOD = {
    "n": 2, "rows": [1.0, 2, 3], "inner": {"p": {"x": 0}}, "pair": [None, 1], "kind": "a",
    "yes": True, "many": [{"x": 1.0}],
}  # fmt: skip


def test_what_fits():
    assert first_problem(GOOD, OUTER, undeclared=True) is None
    assert first_problem(GOOD | {"inner": {"p": {"x": 1}}, "more": 1}, OUTER) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"n": 2.0}, "n is 2.0, not int"),
        ({"n": True}, "n is True, not int"),
        ({"rows": [1.0, 2.0]}, "rows has 2 values, not 3"),
        ({"n": 0, "rows": [1.0]}, "n is 0, not 1"),
        ({"rows": [1.0, "2", 3.0]}, "rows[1] is '2', not float"),
        ({"rows": [1.0, float("nan"), 3.0]}, "rows[1] is nan, not float"),
        ({"rows": [1.0, 10**400, 3.0]}, "rows[1] is 1" + "0" * 39 + ", not float"),
        ({"rows": {"0": 1.0}}, "rows is {'0': 1.0}, no list"),
        ({"inner": {"p": {}}}, "inner.p.x is missing"),
        ({"inner": {"p": {"x": None}}}, "inner.p.x is None, not float"),
        ({"inner": [1]}, "inner is [1], no object"),
        ({"pair": [1.0]}, "pair is [1.0], no list of 2"),
        ({"pair": [None, "1"]}, "pair[1] is '1', not float"),
        ({"kind": "c"}, "kind is 'c', not 'a' or 'b'"),
        ({"kind": ["a"]}, "kind is ['a'], not 'a' or 'b'"),
        ({"yes": 1}, "yes is 1, not bool"),
        ({"many": [{"x": 1.0}, {}]}, "many[1].x is missing"),
    ],
)
def test_what_does_not_fit(change, problem):
    assert first_problem(GOOD | change, OUTER) == problem


def test_other_values_than_objects():
    assert first_problem([1], OUTER) == "it is [1], no object"
    assert first_problem(GOOD | {"more": 1}, OUTER, undeclared=True) == "more is not declared"


def test_declared_keys():
    paths = list(declared_keys(OUTER))
    assert paths[:3] == [("n",), ("rows",), ("inner",)]
    assert ("inner", "*", "x") in paths


def test_made_up_studies_are_as_the_suites_write_them():
    table = elastic_study.tokens(4, 50)
    made_up = {
        "depth": elastic_study.depth_part(4),
        "convergence": elastic_study.convergence_part(4, table),
        "exits": elastic_study.exits_part(4),
        "readout": readout_study.part("drift"),
    }
    assert made_up.keys() == SUITES.keys()
    for suite, part in made_up.items():
        assert first_problem(part, SUITES[suite], undeclared=True) is None, suite
