"""Runs with different fates, for a Slurm to run."""

from ml_collections import ConfigDict

from tests.launch import tiny_study

STEPS = {
    "cancelled": 400, "out_of_time": 400, "killed": 400, "alone": 20, "pair": 20, "refused": 20,
}  # fmt: skip


def get_runs() -> list[ConfigDict]:
    """The first three come to the same numbers whatever disturbs them, and so do the next two."""
    runs = {fate: tiny_study.run(2, steps) for fate, steps in STEPS.items()}
    for fate, config in runs.items():
        config.name, config.study = fate, "fates"
    runs["pair"].processes.count = 2
    runs["pair"].mesh = "data:-1,fsdp:1,tensor:1"  # over both
    runs["refused"].model.vocab_size = 200  # less than the data has
    return list(runs.values())
