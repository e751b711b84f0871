"""A run folder: the files that stand between a run and whoever reads it.

config.json         the resolved config and its digest; written once, checked at every resume
tokenizer.json      the tokenizer of the data that the run trains on
data_manifest.json  the manifest of that data: what it is, its digests
provenance.json     every start: command, host, devices, versions, commit, from when to when
metrics.jsonl       a line for every logged step
status.json         what the run is doing, or why it stopped
summary.json        the result and its digest; a run is finished if and only if there is one
.lock               held by the process that writes into the folder
.reserve            room, as long as it does, to say that the disk is full

All but the lock are replaced atomically. In a run of several processes only process 0 locks and
writes the folder.
"""

import contextlib
import datetime
import json
import logging
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from looped_jax.errors import UserError
from looped_jax.files import (
    DISK_IS_FULL,
    read_json,
    sha256_of_json,
    sweep,
    to_json,
    writable_folder,
    write_json,
)
from looped_jax.lock import Held, locked

State = Literal["running", "finished", "diverged", "failed", "interrupted"]

DIGEST = "digest"  # key of summary.json: SHA-256 of the canonical JSON of all else in it

# A few blocks of a file system: what replacing a small file takes.
RESERVED_BYTES = 1 << 15

_log = logging.getLogger(__name__)
_ABSENT = "absent"
_MAX_KEYS_NAMED = 8


@dataclass(frozen=True)
class Status:
    """Content of status.json.

    Attributes:
      state: "running" also stands there after a kill -9; only `RunFolder.lock` tells the two apart.
      reason: why the run stopped, or what it does before its first step, or None.
      step: last optimiser step known when this was written, or None.
      saved: step of the newest complete checkpoint known then; None or 0: there was none.
      updated: UTC, ISO 8601.
      pid, host: the process that wrote this.
      devices: how many the run was started on, or None.
    """

    state: State
    reason: str | None
    step: int | None
    updated: str
    pid: int
    host: str
    devices: int | None = None
    saved: int | None = None


class RunFolder:
    """The files of one run. Making the object touches nothing on disk."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.status_path = self.path / "status.json"
        self.summary_path = self.path / "summary.json"
        self.provenance_path = self.path / "provenance.json"
        self.tokenizer_path = self.path / "tokenizer.json"
        self.data_manifest_path = self.path / "data_manifest.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints_path = self.path / "checkpoints"
        self.lock_path = self.path / ".lock"
        self._reserve_path = self.path / ".reserve"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Makes the folder if need be and holds it against a second launch.

        Raises:
          UserError: another process holds the folder (its pid and host are named), or the folder
            cannot be written.
        """
        writable_folder(self.path)
        owner = f"pid {os.getpid()} on host {socket.gethostname()} since {utc_now()}"
        try:
            with locked(self.lock_path, owner), self._reserve():
                sweep(self.path)
                yield
        except Held as held:
            raise UserError(f"run folder {self.path} is in use by {held}") from None

    @contextlib.contextmanager
    def _reserve(self) -> Iterator[None]:
        """Keeps room inside the block for a status that says that the disk is full."""
        with contextlib.suppress(OSError), open(self._reserve_path, "wb") as file:
            file.write(bytes(RESERVED_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            yield
        finally:
            self._reserve_path.unlink(missing_ok=True)

    def write_config(self, resolved: Mapping[str, Any], may_change: Collection[str] = ()) -> str:
        """Writes config.json, or holds a resumed run to the config that it was started with.

        Args:
          resolved: the whole config as JSON values, `json.loads(config.to_json())`.
          may_change: dotted keys whose value (and whatever lies below them) may differ from the
            one in config.json, which then gets the new value.

        Returns:
          The digest of the config (SHA-256 of its canonical JSON).

        Raises:
          UserError: another config stands there; the keys that differ are named.
        """
        new = json.loads(json.dumps(resolved, allow_nan=False))
        digest = config_digest(new)
        if self.config_path.exists():
            old = self.read_config()
            differences = _differences(old, new)
            if not differences:
                return config_digest(old)
            refused = {
                key: change
                for key, change in differences.items()
                if not any(key == free or key.startswith(f"{free}.") for free in may_change)
            }
            if refused:
                raise UserError(
                    f"config differs from {self.config_path}: {_describe(refused)}; "
                    "take the old values or another folder"
                )
        write_json(self.config_path, {"digest": digest, "config": new})
        return digest

    def read_config(self) -> dict[str, Any]:
        """The resolved config. Raises UserError if it is missing, broken or was edited."""
        content = self._read(self.config_path, "not a run folder, or its run never started")
        if not (isinstance(content, dict) and isinstance(content.get("config"), dict)):
            raise UserError(f"{self.config_path} is broken: it holds no config")
        if config_digest(content["config"]) != content.get("digest"):
            raise UserError(f"{self.config_path} does not match its digest: it was changed by hand")
        return content["config"]

    def set_status(
        self,
        state: State,
        *,
        step: int | None = None,
        saved: int | None = None,
        reason: str | None = None,
        devices: int | None = None,
    ) -> None:
        """Replaces status.json; `step`, `saved` and `devices` None keep what stands there.

        A status file that is broken is replaced.
        """
        if state not in get_args(State):
            raise ValueError(f"state {state!r}: allowed are {', '.join(get_args(State))}")
        before = self.readable_status()
        if before is not None:
            step = before.step if step is None else step
            saved = before.saved if saved is None else saved
            devices = before.devices if devices is None else devices
        pid, host = os.getpid(), socket.gethostname()
        status = Status(state, reason, step, utc_now(), pid, host, devices, saved)
        try:
            write_json(self.status_path, asdict(status))
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            self._reserve_path.unlink(missing_ok=True)
            write_json(self.status_path, asdict(status))

    def status(self) -> Status | None:
        """What status.json says, or None for a folder without one."""
        if not self.status_path.exists():
            return None
        content = read_json(self.status_path)
        try:
            status = Status(**content)
        except TypeError:
            raise UserError(f"{self.status_path} is broken: it holds no status") from None
        if status.state not in get_args(State):
            raise UserError(f"{self.status_path} is broken: unknown state {status.state!r}")
        return status

    def started_on(self) -> int | None:
        """How many devices the run was started on; None if it was not, or did not say."""
        status = self.readable_status()
        return status.devices if status else None

    def readable_status(self) -> Status | None:
        """What status.json says; None for one that is broken, since checkpoints know better."""
        try:
            return self.status()
        except UserError as error:
            _log.warning("%s", error)
            return None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes the run's result, which finishes it. Missing numbers are None, not NaN."""
        content = json.loads(json.dumps(dict(summary), allow_nan=False, default=to_json))
        write_json(self.summary_path, content | {DIGEST: sha256_of_json(content)})
        self.set_status("finished")

    def read_summary(self) -> dict[str, Any]:
        """The run's result. Raises UserError if there is none yet, or it was changed or damaged."""
        if not self.is_finished():
            status = self.status()
            why = f"the run is {status.state}" if status else "not a run folder"
            if status and status.reason:
                why += f" ({status.reason})"
            raise UserError(f"{self.path} holds no {self.summary_path.name}: {why}")
        content = read_json(self.summary_path)
        if not isinstance(content, dict):
            raise UserError(f"{self.summary_path} is broken: it holds no table of results")
        digest = content.pop(DIGEST, None)
        if digest != sha256_of_json(content):
            raise UserError(
                f"{self.summary_path} does not match its digest: it was changed by hand"
            )
        return content

    def is_finished(self) -> bool:
        """Whether the result was written, whatever status.json says."""
        return self.summary_path.exists()

    def _read(self, path: Path, why_missing: str) -> Any:
        if not path.exists():
            raise UserError(f"{self.path} holds no {path.name}: {why_missing}")
        return read_json(path)


def config_digest(resolved: Mapping[str, Any]) -> str:
    """Hexadecimal SHA-256 of a resolved config; the same for tuples and lists."""
    return sha256_of_json(resolved)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key → (old, new) for all values that are not the same."""
    old_flat, new_flat = _flat(old), _flat(new)
    pairs = {
        key: (old_flat.get(key, _ABSENT), new_flat.get(key, _ABSENT))
        for key in [*old_flat, *(key for key in new_flat if key not in old_flat)]
    }
    return {
        key: (a, b)
        for key, (a, b) in pairs.items()
        if a != b or isinstance(a, bool) != isinstance(b, bool)  # True == 1, but 1 == 1.0 is fine
    }


def _describe(differences: Mapping[str, tuple[Any, Any]]) -> str:
    named = [f"{key} {old} → {new}" for key, (old, new) in differences.items()]
    if len(named) > _MAX_KEYS_NAMED:
        named[_MAX_KEYS_NAMED:] = [f"and {len(named) - _MAX_KEYS_NAMED} more"]
    return ", ".join(named)


def utc_now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
