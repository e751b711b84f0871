"""Tables of JSON that others wrote: each key is looked at before it is used."""

from collections.abc import Mapping
from typing import Any

from looped_jax.errors import UserError

_KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text",
    dict: "a table", list: "a list",
}  # fmt: skip


class Description:
    """One table; every message names the file and the key.

    Raises:
      UserError: it is no table.
    """

    def __init__(self, table: Any, name: str):
        if not isinstance(table, dict):
            raise UserError(f"{name} is no table of keys and values")
        self.table: Mapping[Any, Any] = table
        self.name = name

    def __contains__(self, key: str) -> bool:
        return key in self.table

    def get(self, key: str, kind: type, otherwise: Any = None) -> Any:
        """The value of a key; `otherwise` where it is missing, and an error if that is None.

        Raises:
          UserError: the key is missing, or its value is of another kind.
        """
        if key not in self.table:
            if otherwise is None:
                raise UserError(f"{self.name} has no key {key!r}")
            return otherwise
        value = self.table[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            found = type(value).__name__
            raise UserError(f"{self.name}: {key} is of type {found}; allowed: {_KINDS[kind]}")
        return value

    def count(self, key: str, least: int = 0) -> int:
        """A whole number of at least `least`. Raises UserError as `get` does, or below that."""
        value = self.get(key, int)
        if value < least:
            raise UserError(f"{self.name}: {key} = {value}; allowed: at least {least}")
        return value

    def section(self, key: str) -> "Description":
        """A table within it. Raises UserError if there is none."""
        return Description(self.get(key, dict), f"{self.name}: {key}")

    def refuse_unless(self, allowed: Mapping[str, Any]) -> None:
        """Raises UserError for a key that is there with another value than the one supported."""
        for key, value in allowed.items():
            if key in self.table and self.table[key] != value:
                raise UserError(
                    f"{self.name}: {key} = {self.table[key]!r} is not supported; allowed: {value!r}"
                )

    def refuse_unknown(self, known: tuple[str, ...]) -> None:
        """Raises UserError for a key that is not among these."""
        for key in self.table:
            if key not in known:
                raise UserError(f"{self.name}: key {str(key)[:80]!r} is not known")
