"""The iso-depth study in an evening on two CPU cores: φ to about ± 0.1.

    python -m launch.sweep --study=configs/studies/evening.py --out=runs/evening
    python -m analysis fit runs/evening --out=runs/evening/analysis

The quickstart's design with twice the budgets and larger models: r in {1, 2, 4, 8}, six budgets,
three widths that bracket the optimum of each, 72 runs and 24 (budget, r) cells. The largest runs
read the bundled novels about once. `configs/studies/evening.py:seeds=2` runs every cell with two
seeds, 144 runs in twice the time: it tells how far one run scatters, and narrows φ a little.
Interrupted at any point, the same command goes on; with more seeds it keeps the runs there are.
"""

from ml_collections import ConfigDict

from configs.quickstart import run

RECURRENCES = (1, 2, 4, 8)
# By training FLOPs: 0.16 to 2.3 million tokens.
WIDTHS = {
    1.5e11: (12, 20, 28),
    2.7e11: (16, 24, 36),
    5e11: (20, 28, 44),
    9e11: (24, 36, 52),
    1.6e12: (28, 44, 64),
    3e12: (36, 56, 80),
}
WINDOWS = 2048  # held-out windows of 64 tokens that are scored: a sampling error of 0.005 nats


def get_runs(arg: str = "seeds=1") -> list[ConfigDict]:
    """One config per (seed, r, budget, width).

    Raises:
      ValueError: `arg` is not "seeds=N" with N of at least 1.
    """
    key, _, value = arg.partition("=")
    if key != "seeds" or not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{arg!r} in configs/studies/evening.py:{arg}; allowed: seeds=1, seeds=2")
    return [
        _config(seed, r, flops, width)
        for seed in range(int(value))
        for r in RECURRENCES
        for flops, widths in WIDTHS.items()
        for width in widths
    ]


def _config(seed: int, r: int, flops: float, width: int) -> ConfigDict:
    config = run(r=r, width=width, flops=flops)
    config.study = "evening"
    config.seed = seed
    if seed:
        config.name = f"{config.name}_seed{seed}"
    config.evaluation.max_windows = WINDOWS
    return config
