"""Three runs of two shapes; tests plan them and do not run them."""

from ml_collections import ConfigDict

from tests.launch import tiny_study


def get_runs() -> list[ConfigDict]:
    return [tiny_study.run(1, 100), tiny_study.run(1, 200), tiny_study.run(2, 100)]
