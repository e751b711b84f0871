"""A run small enough to train in a test."""

from pathlib import Path

from ml_collections import ConfigDict

from configs import base


def tiny_config(
    data_folder: Path, *, steps: int = 12, recurrences: int = 2, ends: int = 0
) -> ConfigDict:
    """A core of two layers of width 16 on 300 tokens of vocabulary; 12 steps take a second.

    Prelude and coda have `ends` layers each.
    """
    c = base.get_config()
    c.name = "tiny"
    c.data.folder = str(data_folder)
    c.data.sequence_length = 16
    c.data.batch_size = 8
    c.budget.tokens = 0.0
    c.budget.steps = steps
    c.model = base.isodepth_model(
        vocab_size=300, width=16, head_dim=8, effective_layers=2 * (ends + recurrences), ends=ends,
        recurrences=recurrences, max_length=16,
    )  # fmt: skip
    c.optimizer = base.muonh_adamw(d_ref=16, batch_ref=128, tokens_ref=1536.0)
    c.checkpoint.every_steps = 4
    c.log.every_steps = 1
    c.evaluation.batch_size = 8
    c.evaluation.max_windows = 32
    c.mesh = "data:1,fsdp:1,tensor:1"
    return c
