"""Where measurements of a run go, and what stands beside them.

A run's summary.json holds what was measured on its own data after its last step, and nothing else.
On other data, or after another step, results go to a summary of their own:
RUN/evaluations/DATA-DIGEST[-stepN], or wherever --out says. In either, `measured` names for every
suite the data, the step, the mesh and the settings.
"""

import dataclasses
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from looped_jax import processes
from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder, utc_now

EVALUATIONS = "evaluations"
MEASURED = "measured"  # key of summary.json: suite -> on what, when, with which settings
OF_THE_LOSS = ("loss", "loss_standard_error", "bits_per_byte", "validation_tokens")
# Relative difference of two losses that rounding on other devices may make: the first one stays.
ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is measured: a checkpoint of a run on a text.

    Attributes:
      data, digest: folder and digest of the text.
      step: of the checkpoint.
      mesh: devices by axis.
      own: whether it is the run's last step on the data it was trained on.
    """

    data: str
    digest: str
    step: int
    mesh: str
    own: bool

    @classmethod
    def of(
        cls, trained_on: str | None, data: TokenData, step: int, final_step: int, mesh: Mesh
    ) -> "Subject":
        """Of data with the digest `trained_on`; None for a model from elsewhere: any is its own."""
        own = step == final_step and trained_on in (None, data.digest)
        devices = ",".join(f"{axis}:{size}" for axis, size in mesh.shape.items())
        return cls(str(data.folder), data.digest, step, devices, own)

    def folder(self, run: RunFolder, out: Path | None, final_step: int) -> RunFolder:
        """Where its results go: `out` if it is given."""
        if out is not None:
            return RunFolder(out)
        if self.own:
            return run
        step = "" if self.step == final_step else f"-step{self.step}"
        return RunFolder(run.path / EVALUATIONS / f"{Path(self.data).name}-{self.digest[:8]}{step}")


@dataclasses.dataclass(frozen=True)
class Results:
    """The summary that suites add their parts to.

    Attributes:
      run: the run folder, which is only read unless it is `folder` as well.
      folder: whose summary.json it is.
      subject: what is measured.
      suites: all that there are; their parts of a run's own summary are not those of other data.
    """

    run: RunFolder
    folder: RunFolder
    subject: Subject
    suites: tuple[str, ...]

    def read(self) -> dict[str, Any]:
        """The summary so far.

        Raises:
          UserError: the folder holds results of another run, or of other data or another step.
        """
        own = self.run.read_summary()
        if self.folder.path == self.run.path:
            return own
        if not self.folder.is_finished():
            if self.subject.own:
                return own
            return {
                key: value for key, value in own.items()
                if key not in (*OF_THE_LOSS, *self.suites, MEASURED)
            }  # fmt: skip
        there = self.folder.read_summary()
        on = [(m["digest"], m["step"]) for m in there.get(MEASURED, {}).values()]
        if there.get("config_digest") != own.get("config_digest") or any(
            each != (self.subject.digest, self.subject.step) for each in on
        ):
            raise UserError(
                f"{self.folder.path} holds results of another run, data or step: choose another "
                "--out"
            )
        return there

    def has(self, suite: str, settings: dict[str, Any]) -> bool:
        """Whether the suite was measured before: the same step, data and settings."""
        before = self.read().get(MEASURED, {}).get(suite)
        wanted = (self.subject.digest, self.subject.step, settings)
        return before is not None and wanted == tuple(
            before[key] for key in ("digest", "step", "settings")
        )

    def add(
        self, suite: str, part: dict[str, Any], settings: dict[str, Any], display: Display
    ) -> None:
        """Adds what a suite found; process 0 writes it.

        The loss stands at the top, every other suite under its name. A loss that was there and is
        another now is kept in `measured` as "replaced", and said.
        """

        def write() -> None:
            summary = self.read()
            entry = {
                "at": utc_now(), "data": self.subject.data, "digest": self.subject.digest,
                "step": self.subject.step, "mesh": self.subject.mesh, "settings": settings,
            }  # fmt: skip
            if suite == "loss":
                before, now = summary.get("loss"), part["loss"]
                if before is None or abs(now - before) > ROUNDING * abs(before):
                    summary |= part
                    if before is not None:
                        entry["replaced"] = before
                        display.say(
                            f"{self.folder.summary_path}: loss {before:.6f} was there and is "
                            f"replaced by {now:.6f}"
                        )
            else:
                summary[suite] = part
            summary[MEASURED] = summary.get(MEASURED, {}) | {suite: entry}
            self.folder.write_summary(summary)

        processes.on_process_0(write)
