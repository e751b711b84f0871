"""The iso-depth study in ten minutes on two CPU cores: what is one recurrence worth?

    python -m launch.sweep --study=configs/studies/quickstart.py --out=runs/quickstart
    python -m analysis fit runs/quickstart --out=runs/quickstart/analysis

r in {1, 2, 4, 8} at effective depth 10 (1 + 8 + 1 layers), three compute budgets, widths that
bracket the optimum of each; the design of arXiv:2604.21106 at a millionth of its compute.
"""

from ml_collections import ConfigDict

from configs.quickstart import run

RECURRENCES = (1, 2, 4, 8)
WIDTHS = {1e11: (16, 24, 32), 3e11: (16, 24, 32, 48), 9e11: (24, 32, 48)}  # by training FLOPs


def get_runs() -> list[ConfigDict]:
    """One config per (r, budget, width)."""
    return [
        run(r=r, width=width, flops=flops)
        for r in RECURRENCES
        for flops, widths in WIDTHS.items()
        for width in widths
    ]
