"""A run that diverges, one that does not fit the data, one long enough to be killed, a good one."""

from ml_collections import ConfigDict

from configs import base
from tests.launch import tiny_study


def get_runs() -> list[ConfigDict]:
    runs = {name: tiny_study.run(2, 100) for name in ("diverges", "fails", "is_killed", "is_good")}
    for name, config in runs.items():
        config.name, config.study = name, "broken"
    runs["diverges"].optimizer = base.adamw(
        rate=1e38, decay=0.0, clip_norm=1.0, warmup_steps=0, warmdown_share=1.0
    )
    runs["fails"].model.vocab_size = 200
    runs["is_killed"].budget.steps = 100_000
    return list(runs.values())
