"""Files that others read: written aside, then renamed, so that none is ever half-written."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from analysis.errors import AnalysisError


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text under its final name only when it is complete.

    What a file's name holds beyond UTF-8 is written as an escape.
    """
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes under their final name only when they are complete."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def dumps(document: dict[str, Any]) -> str:
    """JSON text; NaN and infinity, which JSON does not have, are an error."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def refuse_unwritable(folder: Path) -> None:
    """Raise AnalysisError if no file can be made in the folder, or the folder itself; make none."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise AnalysisError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
