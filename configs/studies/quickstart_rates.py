"""The learning rates of the quickstart study, tuned once at its reference shape.

    python -m launch.sweep --study=configs/studies/quickstart_rates.py --out=runs/quickstart_rates

The rates of arXiv:2604.21106 hold at batches of 262,144 tokens; at 512 tokens its batch rule would
shrink the AdamW rates to nothing, so they are tuned here: a grid over the MuonH rate and one factor
on all AdamW rates, at width 32 and 2e11 FLOPs, for r = 1 and r = 4 separately. Held-out loss in
nats (standard error over windows 0.003; two CPU cores, eight minutes):

    r  MuonH rate   AdamW x 1   x 3     x 10
    1  0.007        3.953       3.803   3.794
    1  0.014        3.892       3.755   3.760
    1  0.028        3.850       3.717   3.714
    4  0.007        3.955       3.815   3.815
    4  0.014        3.947       3.748   3.778
    4  0.028        3.985       3.773   3.756

Between 3 and 10 the AdamW factor hardly matters, and the MuonH rate prefers the upper end for r = 1
and the middle for r = 4. One recipe for all r lies between: MuonH 0.02, AdamW x 5
(configs/quickstart.py).
"""

from ml_collections import ConfigDict

from configs import base
from configs.quickstart import run

RECURRENCES = (1, 4)
MATRIX_RATES = (0.007, 0.014, 0.028)
ADAMW_FACTORS = (1.0, 3.0, 10.0)  # on the base rates of configs/base.py


def get_runs() -> list[ConfigDict]:
    """One config per (r, MuonH rate, AdamW factor)."""
    runs = []
    for r in RECURRENCES:
        for matrix_rate in MATRIX_RATES:
            for factor in ADAMW_FACTORS:
                c = run(r=r, width=32, flops=2e11)
                c.study = "quickstart_rates"
                c.name = f"r{r}_matrix{matrix_rate:g}_adamw{factor:g}"
                for group, rate in base.muonh_adamw(
                    d_ref=1, batch_ref=1, tokens_ref=1.0
                ).rates.items():
                    c.optimizer.rates[group] = rate * factor
                c.optimizer.rates.matrix = matrix_rate
                runs.append(c)
    return runs
