"""Two runs of a second or two and of one shape."""

from ml_collections import ConfigDict

from configs import base

LENGTH, BATCH = 16, 4


def get_runs() -> list[ConfigDict]:
    return [run(2, 100), run(2, 200)]


def run(r: int, steps: int) -> ConfigDict:
    c = base.get_config()
    c.name, c.study = f"r{r}_{steps}", "tiny"
    c.data.folder = "no/such/folder"  # tests give --data
    c.data.sequence_length, c.data.batch_size = LENGTH, BATCH
    c.mesh = "data:1,fsdp:1,tensor:1"  # the same numbers for every number of workers
    c.budget.tokens, c.budget.steps = 0.0, steps
    c.model = base.isodepth_model(
        vocab_size=300, width=8, head_dim=4, effective_layers=r, ends=0, recurrences=r,
        max_length=LENGTH,
    )  # fmt: skip
    c.optimizer = base.adamw(
        rate=1e-2, decay=0.0, clip_norm=1.0, warmup_steps=0, warmdown_share=1.0
    )
    c.checkpoint.every_steps = 50
    c.log.every_steps = 10
    c.evaluation.max_windows = 32
    return c
