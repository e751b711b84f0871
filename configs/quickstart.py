"""One run of the quickstart study: about a minute on two CPU cores.

    python -m looped_jax.data.prepare --source=bundled --out=data/novels_512 --vocab_size=512
    python -m looped_jax.train --config=configs/quickstart.py --workdir=runs/one

`--config=configs/quickstart.py:r=8,width=48` chooses another cell of the grid.
"""

from ml_collections import ConfigDict

from configs import base

EFFECTIVE_LAYERS = 10  # 1 + 8 + 1
HEADS = 2


def get_config(arg: str = "") -> ConfigDict:
    """A run at one (r, width, training FLOPs); `arg` is "r=4,width=32,flops=6e11" or a part of it.

    Raises:
      ValueError: `arg` has another key or value.
    """
    return run(**base.parse_arg(arg, r=4, width=32, flops=6e11))


def run(*, r: int, width: int, flops: float, injection: str = "linear") -> ConfigDict:
    """The config of one cell; one recipe serves every r (configs/studies/quickstart_rates.py)."""
    c = base.get_config()
    c.name = f"r{r}_d{width}_{flops:g}".replace("+", "")
    c.study = "quickstart"
    c.data.folder = "data/novels_512"
    c.data.sequence_length = 64
    c.data.batch_size = 8
    c.budget.tokens = 0.0
    c.budget.flops = flops
    c.model = base.isodepth_model(
        vocab_size=512, width=width, head_dim=width // HEADS, effective_layers=EFFECTIVE_LAYERS,
        ends=1, recurrences=r, max_length=64, injection=injection,
    )  # fmt: skip
    # Keeping little is fastest; for a block with a single layer the loop itself recomputes it.
    c.model.remat = "layer" if c.model.core_layers > 1 else "none"
    # The reference at which the rates below were tuned: this width, this batch, these tokens.
    c.optimizer = base.muonh_adamw(d_ref=32, batch_ref=512, tokens_ref=2.5e5)
    for group in c.optimizer.rates:
        c.optimizer.rates[group] *= 5.0
    c.optimizer.rates.matrix = 0.02
    c.evaluation.batch_size = 64
    c.checkpoint.every_steps = 200
    return c
