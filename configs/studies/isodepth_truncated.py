"""The iso-depth grid under truncated backpropagation (arXiv:2604.21106, section 5).

    python -m launch.sweep --study=configs/studies/isodepth_truncated.py --out=runs/truncated \\
      --backend=slurm --slurm_gpus=8 --slurm_time=24:00:00
    python -m analysis compare runs/isodepth runs/truncated --out=runs/truncated/analysis

Gradients run through the last half of the recurrences only (1, 2, 4 of r = 2, 4, 8), which buys
more tokens at the same FLOPs, so every budget but the first has one size more. The r = 1 runs are
those of configs/studies/isodepth.py. Published, on the four lower budgets: φ = 0.38.
"""

from ml_collections import ConfigDict

from configs.isodepth import run
from configs.studies.isodepth import SIZES

RECURRENCES = (2, 4, 8)
ONE_MORE = {1e18: 16, 2.15e18: 18, 4.64e18: 22, 1e19: 28, 2.15e19: 40}


def get_runs() -> list[ConfigDict]:
    """One config per (r, budget, size)."""
    runs = []
    for r in RECURRENCES:
        for flops, sizes in SIZES.items():
            more = (ONE_MORE[flops],) if flops in ONE_MORE else ()
            for s in (*sizes, *more):
                c = run(r=r, s=s, flops=flops, backprop=r // 2)
                c.study = "isodepth_truncated"
                runs.append(c)
    return runs
