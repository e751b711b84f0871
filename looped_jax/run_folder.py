"""A run folder: the files that stand between a run and whoever reads it.

config.json    the resolved config and its digest; written once, checked at every resume
status.json    what the run is doing, or why it stopped
summary.json   the result; written last, so that a folder with one is a finished run
.lock          held by the process that writes into the folder

All but the lock are replaced atomically. In a run of several processes only process 0 locks and
writes the folder.
"""

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from looped_jax.errors import UserError
from looped_jax.files import read_json, sha256_of_json, sweep, writable_folder, write_json
from looped_jax.lock import Held, locked

State = Literal["running", "finished", "diverged", "failed", "interrupted"]

_ABSENT = "absent"
_MAX_KEYS_NAMED = 8


@dataclass(frozen=True)
class Status:
    """Content of status.json.

    Attributes:
      state: "running" also stands there after a kill -9; only `RunFolder.lock` tells the two apart.
      reason: why the run stopped, or what it does before its first step, or None.
      step: last optimiser step known when this was written, or None.
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


class RunFolder:
    """The files of one run. Making the object touches nothing on disk."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.status_path = self.path / "status.json"
        self.summary_path = self.path / "summary.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints_path = self.path / "checkpoints"
        self.lock_path = self.path / ".lock"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Makes the folder if need be and holds it against a second launch.

        Raises:
          UserError: another process holds the folder (its pid and host are named), or the folder
            cannot be written.
        """
        writable_folder(self.path)
        owner = f"pid {os.getpid()} on host {socket.gethostname()} since {_utc_now()}"
        try:
            with locked(self.lock_path, owner):
                sweep(self.path)
                yield
        except Held as held:
            raise UserError(f"run folder {self.path} is in use by {held}") from None

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
        reason: str | None = None,
        devices: int | None = None,
    ) -> None:
        """Replaces status.json. `step=None` and `devices=None` keep what stands there."""
        if state not in get_args(State):
            raise ValueError(f"state {state!r}: allowed are {', '.join(get_args(State))}")
        if before := self.status():
            step = before.step if step is None else step
            devices = before.devices if devices is None else devices
        status = Status(state, reason, step, _utc_now(), os.getpid(), socket.gethostname(), devices)
        write_json(self.status_path, asdict(status))

    def status(self) -> Status | None:
        """What status.json says, or None for a folder without one."""
        if not self.status_path.exists():
            return None
        content = read_json(self.status_path)
        try:
            status = Status(**content)
        except TypeError as error:
            raise UserError(f"{self.status_path} is broken: {error}") from error
        if status.state not in get_args(State):
            raise UserError(f"{self.status_path} is broken: unknown state {status.state!r}")
        return status

    def started_on(self) -> int | None:
        """How many devices the run was started on; None if it was not, or did not say."""
        status = self.status()
        return status.devices if status else None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes the run's result and marks it finished. Missing numbers are None, not NaN."""
        write_json(self.summary_path, dict(summary))
        self.set_status("finished")

    def read_summary(self) -> dict[str, Any]:
        """The run's result. Raises UserError if the run has none yet or the file is broken."""
        status = self.status()
        why = f"the run is {status.state}" if status else "not a run folder"
        if status and status.reason:
            why += f" ({status.reason})"
        content = self._read(self.summary_path, why)
        if not isinstance(content, dict):
            raise UserError(f"{self.summary_path} is broken: it holds no table of results")
        return content

    def is_finished(self) -> bool:
        """Whether the result was written; true also if the process died straight after."""
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


def _utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
