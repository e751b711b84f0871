"""The readout study on the bundled novels, in 15 minutes on two CPU cores (arXiv:2606.24898).

    python -m looped_jax.data.prepare --source=bundled --out=data/novels_512 --vocab_size=512
    python -m launch.sweep --study=configs/studies/readout_quickstart.py --out=runs/readout
    python -m looped_jax.evaluate --workdir=runs/readout --suites=readout
    python -m analysis report runs/readout --out=runs/readout/analysis

Loss at the last or at every loop, through an RMSNorm or a raw readout, and the two cures of the
normalised readout: a penalty on the norm, and a norm between the loops. The same stack, text,
tokens and rate; every condition with each seed. Does the scale of the state drift where the loss
cannot see it, and what does that cost?

Normalised and raw readouts prefer different rates, and the drift grows with the rate. The study's
is the one with the lowest mean loss of the two, of three tried (loss at every loop, seed 0;
perplexity and mean norm of the state after the 6 loops of training):

    rate    RMSNorm        raw
    3e-3    52.9 (6.0)     70.0 (23.4)
    6e-3    52.3 (37.3)    53.0 (16.4)
    1e-2    75.6 (266)     48.7 (11.7)
"""

from ml_collections import ConfigDict

from configs import readout
from configs.readout import Condition

CONDITIONS = (
    Condition(loss="last", readout="rmsnorm"),
    Condition(loss="last", readout="raw"),
    Condition(loss="every", readout="rmsnorm"),
    Condition(loss="every", readout="raw"),
    Condition(loss="every", readout="rmsnorm", penalty=0.01),
    Condition(loss="every", readout="rmsnorm", between="rmsnorm"),
)
SEEDS = (0, 1, 2)
TOKENS = 7e5
WINDOWS = 256  # held-out windows of 64 tokens that are scored


def get_runs() -> list[ConfigDict]:
    """One config per (condition, seed)."""
    runs = []
    for condition in CONDITIONS:
        for seed in SEEDS:
            config = readout.run("cpu", condition, seed=seed)
            config.name = f"{condition.name}_seed{seed}"
            config.study = "readout_quickstart"
            config.budget.tokens = TOKENS
            config.evaluation.max_windows = WINDOWS
            runs.append(config)
    return runs
