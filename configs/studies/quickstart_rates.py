"""The learning rates of the quickstart study, tuned once at its reference shape.

    python -m launch.sweep --study=configs/studies/quickstart_rates.py --out=runs/quickstart_rates

The rates of arXiv:2604.21106 hold at batches of 262,144 tokens; at 512 tokens its batch rule would
shrink the AdamW rates to nothing, so they are tuned here: a grid over the MuonH rate and one factor
on all AdamW rates, at width 32 and 2e11 FLOPs, for r = 1 and r = 4 separately.
"""

from ml_collections import ConfigDict

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
                for group in c.optimizer.rates:
                    c.optimizer.rates[group] *= factor
                c.optimizer.rates.matrix = matrix_rate
                runs.append(c)
    return runs
