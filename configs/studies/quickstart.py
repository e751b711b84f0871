"""The iso-depth study in minutes on two CPU cores: what is one recurrence worth?

    python -m launch.sweep --study=configs/studies/quickstart.py --out=runs/quickstart
    python -m analysis fit runs/quickstart --out=runs/quickstart/analysis

r in {1, 2, 4, 8} at effective depth 10 (1 + 8 + 1 layers), three compute budgets, three widths that
bracket the optimum of each: 36 runs, the design of arXiv:2604.21106 at some ten-millionth of its
compute.
"""

from ml_collections import ConfigDict

from configs.quickstart import run

RECURRENCES = (1, 2, 4, 8)
# By training FLOPs; the best width grows from 16 to 32 over this range.
WIDTHS = {1e11: (12, 16, 24), 2.5e11: (16, 24, 32), 6e11: (24, 32, 48)}
WINDOWS = 2048  # held-out windows of 64 tokens that are scored: a sampling error of 0.005 nats


def get_runs() -> list[ConfigDict]:
    """One config per (r, budget, width)."""
    runs = [
        run(r=r, width=width, flops=flops)
        for r in RECURRENCES
        for flops, widths in WIDTHS.items()
        for width in widths
    ]
    for config in runs:
        config.evaluation.max_windows = WINDOWS
    return runs
