"""Whether a JSON value is what a schema says; a schema is a type.

``TypedDict`` (an object whose keys are declared), ``list[X]``, ``dict[str, X]`` (names that differ
from run to run), ``tuple[X, Y]`` (a list of just these), ``X | None``, ``Literal``, ``float``
(finite), ``int``, ``str``, ``bool``. ``Annotated[list[X], "R", 1]`` is a list of R + 1 values, and
``Annotated[int, "R"]`` is R itself; a size is what names it first, and at least 1.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired, get_args, get_origin


def first_problem(value: Any, schema: Any, *, undeclared: bool = False) -> str | None:
    """Where the value is not as the schema says, such as "points[3].loss is missing", or None.

    ``undeclared``: keys that the schema does not declare are a problem too.
    """
    return next(_problems(value, schema, "", {}, undeclared), None)


def declared_keys(schema: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key that a schema declares, as the path of keys to it; "*" for a list or any name."""
    if typing.is_typeddict(schema):
        for key, hint in _hints(schema).items():
            yield (*at, key)
            yield from declared_keys(hint, (*at, key))
    elif get_origin(schema) is Annotated:
        yield from declared_keys(get_args(schema)[0], at)
    else:
        below = (*at, "*") if get_origin(schema) in (list, dict, tuple) else at
        for inner in dict.fromkeys(get_args(schema)):
            yield from declared_keys(inner, below)


@functools.cache
def _hints(schema: Any) -> dict[str, Any]:
    return typing.get_type_hints(schema, include_extras=True)


def _problems(
    value: Any, schema: Any, at: str, sizes: dict[str, int], undeclared: bool
) -> Iterator[str]:
    inside = lambda value, schema, place: _problems(value, schema, place, sizes, undeclared)
    origin, args = get_origin(schema), get_args(schema)
    if origin is Annotated:
        before = list(inside(value, args[0], at))
        yield from before or _size_problems(value, args[1:], at, sizes)
    elif origin is NotRequired:
        yield from inside(value, args[0], at)
    elif origin in (types.UnionType, typing.Union):  # X | None alone is used
        if value is not None:
            yield from inside(value, args[0], at)
    elif origin is Literal:
        if value not in args:
            yield f"{at} is {value!r:.40}, not {' or '.join(map(repr, args))}"
    elif typing.is_typeddict(schema) or origin is dict:
        if not isinstance(value, dict):
            yield f"{at or 'it'} is {value!r:.40}, no object"
            return
        hints = dict.fromkeys(value, args[1]) if origin is dict else _hints(schema)
        dot = f"{at}." if at else ""
        for key, hint in hints.items():
            if key not in value and get_origin(hint) is not NotRequired:
                yield f"{dot}{key} is missing"
        if undeclared:
            yield from (f"{dot}{key} is not declared" for key in value if key not in hints)
        for key in hints:
            if key in value:
                yield from inside(value[key], hints[key], f"{dot}{key}")
    elif origin in (list, tuple):
        fits = isinstance(value, list) and (origin is list or len(value) == len(args))
        if not fits:
            yield f"{at} is {value!r:.40}, no list" + f" of {len(args)}" * (origin is tuple)
            return
        kinds = args if origin is tuple else args * len(value)
        for i, (each, kind) in enumerate(zip(value, kinds, strict=True)):
            yield from inside(each, kind, f"{at}[{i}]")
    elif not _is(value, schema):
        yield f"{at} is {value!r:.40}, not {schema.__name__}"


def _size_problems(value: list | int, size: tuple, at: str, sizes: dict[str, int]) -> Iterator[str]:
    name, more = size if len(size) == 2 else (size[0], 0)
    found = len(value) if isinstance(value, list) else value
    n = sizes.setdefault(name, found - more)
    if n < 1 or found != n + more:
        what = f"has {found} values" if isinstance(value, list) else f"is {found}"
        yield f"{at} {what}, not {max(n, 1) + more}"


def _is(value: Any, kind: type) -> bool:
    if kind is not float:
        return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    try:
        return not isinstance(value, bool | str) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False
