"""A trained run, restored: what every suite is given."""

import dataclasses
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from looped_jax.config import RunConfig
from looped_jax.data.shards import TokenData
from looped_jax.evaluation.settings import Settings
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained run, restored: what every suite measures. The mesh is active.

    Attributes:
      step: the one after which the parameters were saved; the run need not be finished.
      folder: the run folder, which is only read.
      out: the folder that suites write their tables into.
    """

    run: RunConfig
    step: int
    params: Any
    data: TokenData
    mesh: Mesh
    folder: RunFolder
    out: Path
    display: Display
    settings: Settings

    @property
    def max_windows(self) -> int:
        """Windows of held-out text that a suite scores; 0 for all."""
        return self.settings.max_windows or self.run.evaluation.max_windows
