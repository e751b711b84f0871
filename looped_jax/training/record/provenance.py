"""provenance.json: every start of a run, with all that its numbers may depend on."""

import importlib.metadata
import logging
import os
import platform
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json
from looped_jax.run_folder import RunFolder, State, utc_now
from looped_jax.version import VERSION

_log = logging.getLogger(__name__)

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def circumstances(mesh: Mesh) -> dict[str, Any]:
    """Command, place, versions, commit and devices of this process, as JSON values."""
    devices = mesh.devices.ravel()
    return {
        "command": shlex.join(sys.orig_argv),
        "folder": os.getcwd(),
        "host": socket.gethostname(),
        "versions": versions(),
        "git": commit(),
        "devices": {"kind": devices[0].device_kind, "count": devices.size},
        "processes": len({device.process_index for device in devices}),
        "mesh": ",".join(f"{axis}:{size}" for axis, size in mesh.shape.items()),
    }


def versions() -> dict[str, str]:
    """Of Python, this project and the packages that compute."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "looped_jax": VERSION} | found


def commit() -> dict[str, Any] | None:
    """{"commit", "dirty"} of the project's folder; None where it is no git checkout."""
    root = Path(__file__).parents[3]
    said = []
    for question in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            asked = subprocess.run(["git", "-C", str(root), *question],
                                   capture_output=True, text=True, timeout=20)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        if asked.returncode != 0:
            return None
        said.append(asked.stdout.strip())
    return {"commit": said[0], "dirty": bool(said[1])}


def note_start(folder: RunFolder, start: dict[str, Any], step: int) -> None:
    """Adds a start to provenance.json: `circumstances`, at which step it took up the run."""
    entry = {"started": utc_now(), "ended": None, "state": None, "from_step": step} | start
    write_json(folder.provenance_path, {"starts": [*starts(folder), entry]})


def note_end(folder: RunFolder, state: State) -> None:
    """Says when and how the last start ended, if it was noted and has not ended."""
    all_starts = starts(folder)
    if all_starts and all_starts[-1]["ended"] is None:
        all_starts[-1] |= {"ended": utc_now(), "state": state}
        write_json(folder.provenance_path, {"starts": all_starts})


def starts(folder: RunFolder) -> list[dict[str, Any]]:
    """All starts so far; one without an end is at work or was killed.

    No result depends on them: a file that cannot be read counts as empty, with a warning.
    """
    if not folder.provenance_path.exists():
        return []
    try:
        content = read_json(folder.provenance_path)
        if isinstance(content, dict) and isinstance(content.get("starts"), list):
            return content["starts"]
        problem = f"{folder.provenance_path} holds no list of starts"
    except UserError as error:
        problem = str(error)
    _log.warning("%s: earlier starts are forgotten", problem)
    return []
