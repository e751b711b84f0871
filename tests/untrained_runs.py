"""Finished run folders around a model as it is initialised."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from looped_jax.config import resolve, to_json
from looped_jax.data.shards import TokenData
from looped_jax.model.boxes import unboxed
from looped_jax.run_folder import RunFolder
from looped_jax.training.checkpoints import Checkpoints
from looped_jax.training.record.summary import summarise
from looped_jax.training.state import init_params
from looped_jax.training.validation import ValidationLoss


def write_untrained_run(path: Path, config: ConfigDict, params: Any = None) -> RunFolder:
    """A run folder with a checkpoint (of `params`, if given) that says it is finished."""
    folder, run = RunFolder(path), resolve(config)
    if params is None:
        params = jax.jit(lambda: unboxed(init_params(run.model, 0)))()
    data = TokenData.open(config.data.folder)
    with folder.lock():
        config_digest = folder.write_config(to_json(config))
        with Checkpoints(folder.checkpoints_path, keep=1) as checkpoints:
            checkpoints.save(2, {"params": params}, {"data_digest": data.digest})
            checkpoints.wait()
        windows_W2 = np.array([[990.0, 100.0]])
        loss = ValidationLoss(9.9, 0.1, bits_per_byte=9.9, tokens=100, windows_W2=windows_W2)
        summary = summarise(run, config_digest, data, loss, {"loss": 9.9}, seconds=1.0)
        folder.write_summary(summary | {"steps": 2})  # the step of the checkpoint
    return folder
