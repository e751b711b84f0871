"""Submissions on disk: which job has which runs, written down before Slurm is asked.

OUT/slurm/NAME/plan.json    groups of run folders, one group for each job of an array
OUT/slurm/NAME/died_INDEX   the exit status of a job whose processes ended badly
OUT/slurm/NAME/*_log.out    what a job printed outside of runs

NAME is also the name of the array in Slurm. It is unique, so that a sweep that was killed at any
moment finds what it submitted, and nothing is submitted twice.
"""

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.study import PlannedRun
from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json

SUBMISSIONS = "slurm"
_PLAN = "plan.json"
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Submission:
    """One array of jobs.

    Attributes:
      folder: of its files; its name is the name of the array.
      groups: names of run folders, by the index of the job that runs them.
    """

    folder: Path
    groups: Sequence[Sequence[str]]

    @property
    def name(self) -> str:
        return self.folder.name

    def died_path(self, index: int | str) -> Path:
        """Where a job leaves its exit status when it is not 0."""
        return self.folder / f"died_{index}"

    def exit_status(self, index: int) -> int | None:
        """Of a job whose processes ended badly, otherwise None."""
        path = self.died_path(index)
        text = path.read_text().strip() if path.exists() else ""
        return int(text) if text.isdigit() else None

    def forget_exit_status(self, index: int) -> None:
        """Once it has been told; the file stays under another name."""
        path = self.died_path(index)
        path.replace(path.with_name(f"{path.name}.told"))

    def log(self, index: int) -> Path | None:
        """What the first process of a job printed outside of runs; None if it never started."""
        ending = f"_{index}_0_log.out" if len(self.groups) > 1 else "_0_log.out"
        logs = sorted(self.folder.glob(f"*{ending}"))
        return logs[-1] if logs else None


def plan_submission(study: str, out: Path, groups: Sequence[Sequence[PlannedRun]]) -> Submission:
    """Writes a new submission down."""
    named = _NO_NAME.sub("_", study)
    name = f"{named}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    folder = out.resolve() / SUBMISSIONS / name
    folder.mkdir(parents=True)
    submission = Submission(folder, [[run.folder.path.name for run in group] for group in groups])
    write_json(folder / _PLAN, {"planned": time.time(), "groups": submission.groups})
    return submission


def read_submissions(out: Path) -> list[Submission]:
    """All of a folder, oldest first. Raises UserError if one is broken."""
    found = []
    for path in out.resolve().glob(f"{SUBMISSIONS}/*/{_PLAN}"):
        content = read_json(path)
        try:
            found.append((content["planned"], Submission(path.parent, content["groups"])))
        except (KeyError, TypeError):
            raise UserError(f"{path} is broken: it holds no groups of runs") from None
    return [submission for _, submission in sorted(found, key=lambda pair: pair[0])]
