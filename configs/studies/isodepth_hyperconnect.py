"""The iso-depth grid with hyperconnections, two lanes (arXiv:2604.21106, section 5).

    python -m launch.sweep --study=configs/studies/isodepth_hyperconnect.py --out=runs/lanes \\
      --backend=slurm --slurm_gpus=8 --slurm_time=24:00:00
    python -m analysis compare runs/isodepth runs/lanes --out=runs/lanes/analysis

The state is two residual lanes that every recurrence reads, mixes and writes with parameters of its
own, in place of an injection matrix. The r = 1 runs are those of configs/studies/isodepth.py.
Published, on these four budgets: φ = 0.65.
"""

from ml_collections import ConfigDict

from configs.isodepth import run
from configs.studies.isodepth import SIZES

RECURRENCES = (2, 4, 8)
BUDGETS = (4.64e17, 1e18, 2.15e18, 4.64e18)
ONE_MORE = {2.15e18: 18}


def get_runs() -> list[ConfigDict]:
    """One config per (r, budget, size)."""
    runs = []
    for r in RECURRENCES:
        for flops in BUDGETS:
            more = (ONE_MORE[flops],) if flops in ONE_MORE else ()
            for s in (*SIZES[flops], *more):
                c = run(r=r, s=s, flops=flops, injection="hyperconnect")
                c.study = "isodepth_hyperconnect"
                runs.append(c)
    return runs
