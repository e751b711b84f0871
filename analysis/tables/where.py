"""``--where``: a condition on the columns of a table, in a small language that runs no code.

    r in (1, 4) and budget < 3e18 and not quality == 'clean'

Columns, numbers, strings, comparisons (chained ones too), ``in`` and ``not in`` a list, ``and``,
``or``, ``not``, brackets. A condition is parsed as Python and each node is interpreted here; a node
of any other kind is refused.
"""

import ast
import difflib
import operator
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import AnalysisError

ALLOWED = "columns, numbers, strings, comparisons, in, and, or, not"
COMPARISONS: dict[type[ast.cmpop], Callable] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
Mask = NDArray[np.bool_]
Constant = float | str


class _RefusedError(Exception):
    pass


def rows_where(frame: pd.DataFrame, condition: str) -> Mask:
    """The rows that meet the condition, bool (rows,); a row without the value meets none.

    Raises:
        AnalysisError: it is no condition, or names a column that is not there.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes such as '\d'
            tree = ast.parse(condition.strip(), mode="eval")
        return _mask(tree.body, frame)
    except SyntaxError as error:
        reason = error.msg
    except (RecursionError, MemoryError):
        reason = "too deeply nested"
    except (ValueError, _RefusedError) as error:
        reason = str(error)
    raise AnalysisError(
        f"--where {condition!r} is not a condition on the columns: {reason}; allowed: {ALLOWED}"
    )


def _mask(node: ast.expr, frame: pd.DataFrame) -> Mask:
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return join.reduce([_mask(value, frame) for value in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_mask(node.operand, frame)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        each = [
            _compare(op, left, right, frame)
            for op, left, right in zip(node.ops, sides, sides[1:], strict=False)
        ]
        return np.logical_and.reduce(each)
    raise _RefusedError(f"{ast.unparse(node)!r} compares nothing")


def _compare(op: ast.cmpop, left: ast.expr, right: ast.expr, frame: pd.DataFrame) -> Mask:
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            raise _RefusedError(f"{ast.unparse(right)!r} is no list of values such as (1, 4)")
        each = [_compare(ast.Eq(), left, value, frame) for value in right.elts]
        found = np.logical_or.reduce(each)
        return found if isinstance(op, ast.In) else ~found
    if type(op) not in COMPARISONS:
        raise _RefusedError("'is' is not among the comparisons")
    a, b = _side(left, frame), _side(right, frame)
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        raise _RefusedError(f"{ast.unparse(left)!r} and {ast.unparse(right)!r} are no columns")
    if _is_text(a) != _is_text(b):
        text, number = (left, right) if _is_text(a) else (right, left)
        raise _RefusedError(f"{ast.unparse(text)} is text and {ast.unparse(number)} a number")
    return np.asarray(COMPARISONS[type(op)](a, b), bool)


def _side(node: ast.expr, frame: pd.DataFrame) -> np.ndarray | Constant:
    """A column as float64 or as strings (missing ones are empty), or a constant."""
    if isinstance(node, ast.Name):
        if node.id not in frame.columns:
            near = difflib.get_close_matches(node.id, frame.columns, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise _RefusedError(f"there is no column {node.id!r}{hint}")
        column = frame[node.id]
        if pd.api.types.is_numeric_dtype(column):
            return column.to_numpy(np.float64)
        return column.where(column.notna(), "").map(str).to_numpy(object)
    sign = 1.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
        node = node.operand
        if not (isinstance(node, ast.Constant) and isinstance(node.value, int | float)):
            raise _RefusedError(f"{ast.unparse(node)!r} is no number")
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return sign * float(value)
        except OverflowError:
            raise _RefusedError("a number is beyond 1e308") from None
    raise _RefusedError(f"{ast.unparse(node)!r} is neither a column nor a number or string")


def _is_text(side: np.ndarray | Constant) -> bool:
    return isinstance(side, str) or (isinstance(side, np.ndarray) and side.dtype == object)
