"""Does the tuned learning rate carry over to other widths and lengths (arXiv:2604.21106, D.2)?

    python -m launch.sweep --study=configs/studies/rate_transfer.py --out=runs/transfer \\
      --backend=slurm --slurm_gpus=8 --slurm_time=24:00:00
    python -m launch.sweep --study=configs/studies/rate_transfer.py:scale=laptop --out=runs/transfer
    python -m analysis rates runs/transfer --out=runs/transfer/analysis

r = 4. Widths s = 8, 10, 14, 18 at ten tokens per executed parameter, and 20 and 40 tokens per
parameter at s = 10, each with a grid of base rates: the transfer rules carry every base rate to the
run, so that a rule that holds has its optimum at one base rate everywhere. The regret is what the
reference's optimum costs against a run's own. Published: at most 0.004 and 0.005 nats. On a laptop:
widths 16, 32, 48 at ten tokens, and 20 and 40 at width 32.
"""

from ml_collections import ConfigDict

from configs import base, isodepth, quickstart
from configs.studies.learning_rates import LAPTOP_RATES, RATES

RECURRENCES = 4
RATIO = 10.0  # tokens per executed parameter
RATIOS = (20.0, 40.0)
SIZES, SIZE = (8, 10, 14, 18), 10
LAPTOP_WIDTHS, LAPTOP_WIDTH = (16, 32, 48), 32


def get_runs(arg: str = "") -> list[ConfigDict]:
    """One config per (size, tokens per parameter, rate); `arg` is "scale=published" or "laptop".

    Raises:
      ValueError: another scale.
    """
    laptop = base.parse_scale(arg) == "laptop"
    sizes, size = (LAPTOP_WIDTHS, LAPTOP_WIDTH) if laptop else (SIZES, SIZE)
    cells = [(each, RATIO) for each in sizes] + [(size, ratio) for ratio in RATIOS]
    runs = []
    for each, ratio in cells:
        for rate in LAPTOP_RATES if laptop else RATES:
            c = _laptop(each, ratio) if laptop else _published(each, ratio)
            c.optimizer.rates.matrix = rate
            c.name = f"{'d' if laptop else 's'}{each}_x{ratio:g}_rate{rate:g}"
            c.study = "rate_transfer"
            runs.append(c)
    return runs


def _laptop(width: int, ratio: float) -> ConfigDict:
    c = quickstart.run(r=RECURRENCES, width=width, flops=1e11)
    c.budget.flops = 0.0
    c.budget.tokens = base.isodepth_reference_tokens(c.model, ratio)
    return c


def _published(s: int, ratio: float) -> ConfigDict:
    tokens = base.isodepth_reference_tokens(isodepth.model(RECURRENCES, s, "linear"), ratio)
    return isodepth.run(r=RECURRENCES, s=s, tokens=tokens)
