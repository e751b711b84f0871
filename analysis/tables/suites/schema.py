"""Whether a JSON value is what a schema says.

``{"key": X}`` is an object of these keys, ``{...: X}`` one whose names differ from run to run,
``[X]`` a list, ``(X, Y)`` a list of just these, ``X | None`` and ``Literal`` are what they are
elsewhere, ``float`` (finite), ``int``, ``str``, ``bool``.
"""

import math
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args


@dataclass(frozen=True)
class Sized:
    """A list of as many values as the size of this name and ``more``; for an ``int`` the size.

    A size is what names it first, and at least 1.
    """

    schema: Any
    size: str
    more: int = 0


def first_problem(value: Any, schema: Any, *, undeclared: bool = False) -> str | None:
    """Where the value is not as the schema says, such as "points[3].loss is missing", or None.

    ``undeclared``: keys that the schema does not declare are a problem too.
    """
    return next(_problems(value, schema, "", {}, undeclared), None)


def declared_keys(schema: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key that a schema declares, as the path of keys to it; "*" for a list or any name."""
    if isinstance(schema, Sized):
        yield from declared_keys(schema.schema, at)
    elif isinstance(schema, dict):
        for key, inner in schema.items():
            below = (*at, "*" if key is ... else key)
            yield from () if key is ... else (below,)
            yield from declared_keys(inner, below)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from declared_keys(inner, (*at, "*"))


def _problems(
    value: Any, schema: Any, at: str, sizes: dict[str, int], undeclared: bool
) -> Iterator[str]:
    inside = lambda value, schema, place: _problems(value, schema, place, sizes, undeclared)
    match schema:
        case Sized():
            before = list(inside(value, schema.schema, at))
            yield from before or _size_problems(value, schema, at, sizes)
        case types.UnionType():  # X | None alone is used
            yield from () if value is None else inside(value, get_args(schema)[0], at)
        case dict() if not isinstance(value, dict):
            yield f"{at or 'it'} is {value!r:.40}, no object"
        case dict():
            keys = dict.fromkeys(value, schema[...]) if ... in schema else schema
            dot = f"{at}." if at else ""
            yield from (f"{dot}{key} is missing" for key in keys if key not in value)
            if undeclared:
                yield from (f"{dot}{key} is not declared" for key in value if key not in keys)
            for key in filter(value.__contains__, keys):
                yield from inside(value[key], keys[key], f"{dot}{key}")
        case list() | tuple():
            just = isinstance(schema, tuple)
            if not isinstance(value, list) or (just and len(value) != len(schema)):
                yield f"{at} is {value!r:.40}, no list" + f" of {len(schema)}" * just
                return
            kinds = schema if just else schema * len(value)
            for i, (each, kind) in enumerate(zip(value, kinds, strict=True)):
                yield from inside(each, kind, f"{at}[{i}]")
        case type():
            if not _is(value, schema):
                yield f"{at} is {value!r:.40}, not {schema.__name__}"
        case _:  # Literal
            if value not in get_args(schema):
                yield f"{at} is {value!r:.40}, not {' or '.join(map(repr, get_args(schema)))}"


def _size_problems(
    value: list | int, schema: Sized, at: str, sizes: dict[str, int]
) -> Iterator[str]:
    found = len(value) if isinstance(value, list) else value
    n = sizes.setdefault(schema.size, found - schema.more)
    if n < 1 or found != n + schema.more:
        what = f"has {found} values" if isinstance(value, list) else f"is {found}"
        yield f"{at} {what}, not {max(n, 1) + schema.more}"


def _is(value: Any, kind: type) -> bool:
    if kind is not float:
        return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    try:
        return not isinstance(value, bool | str) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False
