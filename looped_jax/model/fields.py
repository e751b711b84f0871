"""Config sections as dataclasses whose annotations say type and bounds of every key.

    @dataclasses.dataclass(frozen=True)
    class Section:
        folder: str
        batch_size: Annotated[int, Bounds(least=1)]
        clip_norm: Annotated[float, Bounds(above=0)] | None

`from_tree(Section, tree, "data")` refuses a value of another type or outside its bounds by name.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a number may be; `None` sets no bound. Infinity and NaN are never allowed."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def allow(self, value: float) -> bool:
        return math.isfinite(value) and not (
            (self.least is not None and value < self.least)
            or (self.above is not None and value <= self.above)
            or (self.most is not None and value > self.most)
            or (self.below is not None and value >= self.below)
        )

    def __str__(self) -> str:
        parts = [
            f"{word} {bound:,}" if isinstance(bound, int) else f"{word} {bound:g}"
            for word, bound in (
                ("at least", self.least), ("above", self.above),
                ("at most", self.most), ("below", self.below),
            )
            if bound is not None
        ]  # fmt: skip
        return " and ".join(parts) or "a finite number"


ANY_NUMBER = Bounds()
Count = Annotated[int, Bounds(least=1)]
CountOrZero = Annotated[int, Bounds(least=0)]
Positive = Annotated[float, Bounds(above=0)]
PositiveOrZero = Annotated[float, Bounds(least=0)]
Share = Annotated[float, Bounds(least=0, most=1)]
# Of a running mean: what stays of it at every step.
Decay = Annotated[float, Bounds(least=0, below=1)]


def from_tree(cls: type[T], tree: Mapping[str, Any], where: str) -> T:
    """A dataclass from a mapping with exactly its fields as keys; sections within are made as well.

    Raises:
      ValueError: a key of section `where` is missing or unknown (the nearest one is named), or its
        value is of another type than the field or outside its bounds.
    """
    if not isinstance(tree, Mapping):
        raise ValueError(f"{where} = {tree!r}; allowed: a section of keys")
    hints = get_type_hints(cls, include_extras=True)
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in tree:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; allowed: {sorted(fields)}"
            raise ValueError(f"{where}.{key} is not a config key{hint}")
    missing = sorted(set(fields) - set(tree))
    if missing:
        raise ValueError(f"{where}.{missing[0]} is missing; required: {missing}")
    prefix = "" if where == "config" else f"{where}."
    return cls(**{key: checked(tree[key], hints[key], f"{prefix}{key}") for key in fields})


def checked(value: Any, annotation: Any, name: str) -> Any:
    """The value as its annotation wants it: whole numbers as float, lists as tuples, sections made.

    Raises:
      ValueError: another type, or outside the bounds; `name` is what the message calls it.
    """
    bounds = ANY_NUMBER
    if get_origin(annotation) is Annotated:
        annotation, bounds = get_args(annotation)[:2]
    kind = get_origin(annotation)
    if kind in (Union, types.UnionType):
        if value is None and types.NoneType in get_args(annotation):
            return None
        options = [option for option in get_args(annotation) if option is not types.NoneType]
        if len(options) == 1:
            return checked(value, options[0], name)
        if not isinstance(value, tuple(options)):
            raise _other_type(name, value, " or ".join(option.__name__ for option in options))
        return value
    if kind is Literal:
        if value not in get_args(annotation):
            allowed = ", ".join(map(repr, get_args(annotation)))
            raise ValueError(f"{name} = {value!r}; allowed: {allowed}")
        return value
    if kind is tuple:
        if not isinstance(value, list | tuple):
            raise _other_type(name, value, "tuple")
        of_items = get_args(annotation)[0]
        return tuple(checked(item, of_items, f"{name}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        return from_tree(annotation, value, name)  # type: ignore[arg-type]
    if annotation in (int, float):
        if annotation is float and type(value) is int:
            value = float(value)
        if type(value) is not annotation:
            raise _other_type(name, value, annotation.__name__)
        if not bounds.allow(value):
            allowed = str(bounds) if math.isfinite(value) else "a finite number"
            raise ValueError(f"{name} = {value}; allowed: {allowed}")
    elif not isinstance(value, annotation):
        raise _other_type(name, value, annotation.__name__)
    return value


def _other_type(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"{name} = {value!r} is a {type(value).__name__}; allowed: {wanted}")
