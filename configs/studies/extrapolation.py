"""Does the law hold beyond its grid: two long runs of the largest size (arXiv:2604.21106, I).

    python -m launch.sweep --study=configs/studies/extrapolation.py --out=runs/extrapolation \\
      --backend=slurm --slurm_nodes=4 --slurm_gpus=8 --slurm_time=72:00:00
    python -m analysis predict runs/isodepth --n_once=… --n_rec=… --r=4 --tokens=4.7e10

s = 34 (width 2,176), r = 1 and r = 4, 47 billion tokens in 89,645 steps of 524,288. Published:
r = 4 ends 0.061 nats above r = 1.
"""

from ml_collections import ConfigDict

from configs.isodepth import SEQUENCE_LENGTH, run

SIZE = 34
RECURRENCES = (1, 4)
BATCH_SIZE = 256  # sequences: 524,288 tokens a step
STEPS = 89_645


def get_runs() -> list[ConfigDict]:
    """One config per r."""
    runs = []
    for r in RECURRENCES:
        tokens = float(STEPS * BATCH_SIZE * SEQUENCE_LENGTH)
        c = run(r=r, s=SIZE, tokens=tokens, batch_size=BATCH_SIZE)
        c.study = "extrapolation"
        runs.append(c)
    return runs
