"""How the loop sees its input: injections beside each other (arXiv:2604.21106, appendix C.2).

    python -m launch.sweep --study=configs/studies/injection_ablation.py --out=runs/injections \\
      --backend=slurm --slurm_gpus=8 --slurm_time=12:00:00
    python -m launch.sweep --study=configs/studies/injection_ablation.py:scale=laptop \\
      --out=runs/injections

r = 4 at one budget. At the published scale (s = 10, 1e18 FLOPs): passthrough, additive, linear;
published: passthrough fails to train, additive trails linear by 0.004 nats. On a laptop
(width 32, 6e11 FLOPs, three seeds) diagonal injection too.
"""

from ml_collections import ConfigDict

from configs import base, isodepth, quickstart

PUBLISHED = ("passthrough", "additive", "linear")
LAPTOP = (*PUBLISHED, "diagonal")
SEEDS = (0, 1, 2)


def get_runs(arg: str = "") -> list[ConfigDict]:
    """One config per injection, and per seed on a laptop; `arg` is "scale=published" or "laptop".

    Raises:
      ValueError: another scale.
    """
    if base.parse_scale(arg) == "laptop":
        return [_laptop(injection, seed) for injection in LAPTOP for seed in SEEDS]
    return [_named(isodepth.run(r=4, s=10, flops=1e18, injection=i), i) for i in PUBLISHED]


def _laptop(injection: str, seed: int) -> ConfigDict:
    c = quickstart.run(r=4, width=32, flops=6e11, injection=injection)
    c.seed = seed
    return _named(c, f"{injection}_seed{seed}")


def _named(c: ConfigDict, name: str) -> ConfigDict:
    c.name, c.study = name, "injection_ablation"
    return c
