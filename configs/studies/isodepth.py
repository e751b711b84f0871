"""The iso-depth scaling law at its published scale: 116 runs (arXiv:2604.21106, table 6).

    python -m launch.sweep --study=configs/studies/isodepth.py --out=runs/isodepth \\
      --backend=slurm --slurm_gpus=8 --slurm_time=24:00:00
    python -m analysis report runs/isodepth --out=runs/isodepth/analysis

r in {1, 2, 4, 8} at effective depth 20 (2 + 16/r x r + 2 layers), six budgets from 4.64e17 to
2.15e19 training FLOPs, four to six sizes each: 7.3e20 FLOPs in all. Published: φ = 0.46.
`isodepth.py:r=4` is one recurrence alone.
"""

from ml_collections import ConfigDict

from configs import base
from configs.isodepth import run

RECURRENCES = (1, 2, 4, 8)
# Sizes s (width 64 s) by training FLOPs.
SIZES = {
    4.64e17: (6, 8, 10, 12),
    1e18: (6, 8, 10, 12, 14),
    2.15e18: (8, 10, 12, 14, 16),
    4.64e18: (10, 12, 14, 16, 18, 20),
    1e19: (12, 16, 18, 20, 24),
    2.15e19: (18, 24, 28, 34),
}


def get_runs(arg: str = "") -> list[ConfigDict]:
    """One config per (r, budget, size); `arg` is "r=4" for one recurrence."""
    only = base.parse_arg(arg, r=int)["r"]
    return [
        run(r=r, s=s, flops=flops)
        for r in RECURRENCES
        if only in (None, r)
        for flops, sizes in SIZES.items()
        for s in sizes
    ]
