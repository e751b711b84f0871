"""Conditions: what they choose, and that they are nothing but conditions."""

import warnings

import pandas as pd
import pytest

from analysis.errors import AnalysisError
from analysis.tables.where import rows_where

FRAME = pd.DataFrame(
    {
        "r": [1, 2, 4, 8],
        "loss": [3.0, float("nan"), -1.0, 2.0],
        "kind": ["a", "b", None, "it's"],
        "flag": [True, False, True, True],
    }
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("r > 2", [2, 3]),
        ("1 < r <= 4", [1, 2]),
        ("r in (1, 8)", [0, 3]),
        ("r not in [1, 8]", [1, 2]),
        ("not r == 4 and loss < 3", [3]),
        ("r == 1 or (r == 2 or r == 8) and kind != 'b'", [0, 3]),
        ("loss == -1", [2]),
        ('kind == "it\'s"', [3]),
        ("kind in ('a', 'b')", [0, 1]),
        ("kind == ''", [2]),
        ("loss > r", [0]),
        ("2 == r", [1]),
        ("flag == 1", [0, 2, 3]),
        ("kind == '\\d'", []),
    ],
)
def test_rows(condition, rows):
    assert list(FRAME.index[rows_where(FRAME, condition)]) == rows


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("@os.system('touch hacked')", "invalid syntax"),
        ("r.to_pickle('hacked')", "compares nothing"),
        ("r == r.to_pickle('hacked')", "is neither a column nor a number or string"),
        ("__import__('os').system('id') == 0", "is neither a column nor a number or string"),
        ("(lambda: 1)() == r", "is neither a column"),
        ("[r for r in (1,)] == r", "is neither a column"),
        ("r in open('x')", "is no list of values such as (1, 4)"),
        ("r in (r.sum(), 1)", "is neither a column"),
        ("r in ()", "is no list of values"),
        ("f'{r}' == kind", "is neither a column"),
        ("r + 1 == 2", "'r + 1' is neither a column"),
        ("r == True", "'True' is neither a column"),
        ("r == -'1'", "is no number"),
        ("r is 1", "'is' is not among the comparisons"),
        ("r", "'r' compares nothing"),
        ("1", "'1' compares nothing"),
        ("1 < 2", "'1' and '2' are no columns"),
        ("r <", "invalid syntax"),
        ("", "invalid syntax"),
        ("los < 3", "there is no column 'los' (did you mean 'loss'?)"),
        ("r == 'a'", "'a' is text and r a number"),
        ("kind < 3", "kind is text and 3 a number"),
        (f"r == {10**400}", "a number is beyond 1e308"),
        ("r == 1\nr == 2", "invalid syntax"),
        ("r == 1\0", "null byte"),
        ("(" * 5000 + "r" + ")" * 5000, "too many nested parentheses"),
        ("not " * 100_000 + "r == 1", "too "),
    ],
)
def test_what_is_no_condition(condition, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="error"), pytest.raises(AnalysisError) as refused:
        rows_where(FRAME, condition)
    message = str(refused.value)
    assert reason in message
    assert message.startswith(f"--where {condition!r} is not a condition on the columns: ")
    assert message.endswith("; allowed: columns, numbers, strings, comparisons, in, and, or, not")
    assert list(tmp_path.iterdir()) == []
