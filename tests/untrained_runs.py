"""Finished run folders around a model as it is initialised."""

from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from looped_jax.config import resolve, to_json
from looped_jax.data.shards import TokenData
from looped_jax.model.boxes import unboxed
from looped_jax.run_folder import RunFolder
from looped_jax.training.checkpoints import Checkpoints
from looped_jax.training.state import init_params


def write_untrained_run(path: Path, config: ConfigDict, params: Any = None) -> RunFolder:
    """A run folder with a checkpoint (of `params`, if given) that says it is finished."""
    folder, run = RunFolder(path), resolve(config)
    if params is None:
        params = jax.jit(lambda: unboxed(init_params(run.model, 0)))()
    digest = TokenData.open(config.data.folder).digest
    with folder.lock():
        folder.write_config(to_json(config))
        with Checkpoints(folder.checkpoints_path, keep=1) as checkpoints:
            checkpoints.save(2, {"params": params}, {"data_digest": digest})
            checkpoints.wait()
        folder.write_summary({"run": config.name, "loss": 9.9, "data_digest": digest})
    return folder
