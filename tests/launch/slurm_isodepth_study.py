"""The first two runs of the published grid at r = 4."""

from ml_collections import ConfigDict

from configs.studies import isodepth


def get_runs() -> list[ConfigDict]:
    return isodepth.get_runs("r=4")[:2]
