"""A document as the field of a record, from JSON, parquet, TFDS or a hub."""

import json
from collections.abc import Iterable
from typing import Any

from looped_jax.errors import UserError


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where} is not JSON to read: it is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}") from error


def text_of(record: Any, field: str, where: str) -> str:
    if not isinstance(record, dict):
        raise UserError(f"{where} is no record with fields but a {type(record).__name__}")
    if field not in record:
        refuse_field(field, record, where)
    text = record[field]
    try:
        if isinstance(text, bytes):
            return text.decode()
        if isinstance(text, str):
            text.encode()
            return text
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise UserError(f"{where}: field {field!r} is not UTF-8: {error.reason}") from error
    raise UserError(f"{where}: field {field!r} is not text but {type(text).__name__}")


def refuse_field(field: str, present: Iterable[str], where: str) -> None:
    names = ", ".join(map(repr, present))
    raise UserError(f"{where} has no field {field!r} (--text_field); it has {names}")
