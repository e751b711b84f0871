"""Two runs of one shape that a job has no time for."""

from ml_collections import ConfigDict

from tests.launch import tiny_study

STEPS = {"short": 200, "long": 60_000}


def get_runs() -> list[ConfigDict]:
    runs = {name: tiny_study.run(2, steps) for name, steps in STEPS.items()}
    for name, config in runs.items():
        config.name, config.study = name, "long"
        config.checkpoint.every_steps = 1000
    return list(runs.values())
