"""imported.json: where an imported run is from, what was stated, which token ends a document."""

from pathlib import Path
from typing import Any

from looped_jax.described import Description
from looped_jax.files import read_json, write_json

NAME = "imported.json"


def write(folder: Path, origin: dict[str, Any]) -> None:
    """Puts it into a run folder; `origin` has a key "end_of_text"."""
    write_json(folder / NAME, origin)


def end_of_text(folder: Path) -> str:
    """The token that ends a document. Raises UserError if the run was not imported."""
    path = folder / NAME
    return Description(read_json(path), str(path)).get("end_of_text", str)
