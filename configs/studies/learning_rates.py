"""MuonH's learning rate, looped and not (arXiv:2604.21106, appendix D.1).

    python -m launch.sweep --study=configs/studies/learning_rates.py --out=runs/rates \\
      --backend=slurm --slurm_gpus=8 --slurm_time=12:00:00
    python -m launch.sweep --study=configs/studies/learning_rates.py:scale=laptop --out=runs/rates
    python -m analysis rates runs/rates --out=runs/rates/analysis

r = 1 and r = 4 at ten tokens per executed parameter, eight rates around the optimum. Published
(s = 10): 0.014 is best for both. On a laptop: width 32, 2e11 FLOPs, rates around the 0.02 of
configs/quickstart.py.
"""

from ml_collections import ConfigDict

from configs import base, isodepth, quickstart

RECURRENCES = (1, 4)
RATES = (0.008, 0.010, 0.012, 0.014, 0.016, 0.018, 0.020, 0.024)
LAPTOP_RATES = (0.007, 0.010, 0.014, 0.020, 0.028, 0.040)


def get_runs(arg: str = "") -> list[ConfigDict]:
    """One config per (r, rate); `arg` is "scale=published" or "scale=laptop".

    Raises:
      ValueError: another scale.
    """
    laptop = base.parse_scale(arg) == "laptop"
    runs = []
    for r in RECURRENCES:
        for rate in LAPTOP_RATES if laptop else RATES:
            c = _laptop(r) if laptop else _published(r)
            c.optimizer.rates.matrix = rate
            c.name, c.study = f"r{r}_rate{rate:g}", "learning_rates"
            runs.append(c)
    return runs


def _laptop(r: int) -> ConfigDict:
    return quickstart.run(r=r, width=32, flops=2e11)


def _published(r: int) -> ConfigDict:
    tokens = base.isodepth_reference_tokens(isodepth.model(r, 10, "linear"), 10.0)
    return isodepth.run(r=r, s=10, tokens=tokens)
