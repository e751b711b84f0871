"""The whole stack looped, and what its readout shows to the loss (arXiv:2606.24898).

    python -m looped_jax.data.prepare --source=bundled --out=data/novels_512 --vocab_size=512
    python -m looped_jax.train --config=configs/readout.py --workdir=runs/readout
    python -m looped_jax.evaluate --workdir=runs/readout --suites=loss,readout

`--config=configs/readout.py:loss=last,readout=raw` chooses a condition:

    loss=every|last          cross-entropy at every loop or at the last
    readout=rmsnorm|raw|last RMSNorm before the head at every loop, at none, or at the last only
    penalty=0.01             lambda of the norm penalty, lambda x mean over loops of mean(H_k^2)
    between=none|rmsnorm     RMSNorm on the state between the loops, after it is read, as published
                             (--config.model.state_norm=every: before)
    loops=4                  K, loops over the stack

Loops are weighed by `--config.loss.loop_weights="(0.1,0.2,0.3,0.4)"`. Sizes:

    cpu              2 layers of width 32, for two CPU cores
    44m, 129m, 1.4b  the published shapes and recipe: WikiText-103 in 20,000 tokens, windows of 256,
                     a constant rate. How long they train, and the heads of 44m and 1.4b, are ours.
    44m_gpt2, 129m_gpt2  about as many parameters with the 50,257 tokens of GPT-2, windows of 2,048
    ouro             the shape of Ouro-1.4B (arXiv:2510.25741) with 49,152 tokens

All but cpu need accelerators and a corpus in data/wikitext103_20k or data/pretraining.
"""

import dataclasses

from ml_collections import ConfigDict

from configs import base

LOSSES = ("every", "last")
READOUTS = {"rmsnorm": "every", "raw": "none", "last": "last"}  # -> model.readout_norm
BETWEEN = {"none": "none", "rmsnorm": "between"}  # -> model.state_norm


@dataclasses.dataclass(frozen=True)
class Condition:
    """What is compared: where the loss looks, through which readout, and what bounds the scale.

    Attributes:
      loss: "every" loop or the "last".
      readout: "rmsnorm", "raw", or RMSNorm at the "last" loop only.
      penalty: lambda of the norm penalty; 0 for none.
      between: norm between the loops, "none" or "rmsnorm".

    Raises:
      ValueError: another value.
    """

    loss: str = "every"
    readout: str = "rmsnorm"
    penalty: float = 0.0
    between: str = "none"

    def __post_init__(self) -> None:
        allowed = {"loss": LOSSES, "readout": READOUTS, "between": BETWEEN}
        for key, values in allowed.items():
            if getattr(self, key) not in values:
                raise ValueError(f"{key} = {getattr(self, key)!r}; allowed: {', '.join(values)}")
        if not self.penalty >= 0:
            raise ValueError(f"penalty = {self.penalty}; allowed: 0 or more")

    @property
    def name(self) -> str:
        """Names the condition in tables: "every_rmsnorm", "last_raw_penalty0.01"."""
        penalty = f"_penalty{self.penalty:g}" if self.penalty else ""
        return f"{self.loss}_{self.readout}{penalty}{'_between' * (self.between != 'none')}"

    def apply(self, config: ConfigDict) -> None:
        """Sets the keys of a config that the condition is about."""
        config.loss.supervision = self.loss
        config.loss.norm_penalty = self.penalty
        config.model.readout_norm = READOUTS[self.readout]
        config.model.state_norm = BETWEEN[self.between]


@dataclasses.dataclass(frozen=True)
class Size:
    """A shape and how long it trains: L layers of width D with F hidden, T tokens, V vocabulary."""

    layers: int
    width: int
    heads: int
    mlp_hidden: int
    vocab_size: int
    max_length: int
    loops: int
    batch_size: int
    tokens: float
    rate: float
    warmup_steps: int
    dropout: float

    @property
    def steps(self) -> float:
        """Optimiser steps of `tokens`."""
        return self.tokens / (self.batch_size * self.max_length)

    @property
    def follows_the_paper(self) -> bool:
        """Whether this is a published shape, trained with the published recipe."""
        return self.vocab_size == WORDS


WORDS = 20_000  # the published vocabulary
SIZES = {
    # The rate is that of configs/studies/readout_quickstart.py; dropout has no place in less than
    # an epoch.
    "cpu": Size(2, 32, 2, 128, 512, 64, 6, 8, 7e5, 6e-3, 50, 0.0),
    "44m": Size(8, 512, 8, 2048, WORDS, 256, 4, 64, 5e8, 3e-4, 0, 0.0),
    "129m": Size(12, 768, 12, 3072, WORDS, 256, 4, 32, 5e8, 3e-4, 0, 0.0),
    "1.4b": Size(20, 2048, 16, 8192, WORDS, 256, 4, 8, 5e8, 3e-4, 0, 0.0),
    "44m_gpt2": Size(4, 512, 8, 2048, 50_257, 2048, 4, 256, 2.5e9, 3e-4, 500, 0.1),
    "129m_gpt2": Size(6, 1024, 16, 2736, 50_257, 2048, 4, 256, 2.5e9, 3e-4, 500, 0.1),
    "ouro": Size(24, 2048, 16, 5632, 49_152, 4096, 4, 1024, 1e11, 3e-4, 2000, 0.0),
}


def get_config(arg: str = "") -> ConfigDict:
    """A run; `arg` is "size=44m,loss=every,readout=raw,penalty=0.01,between=none,loops=4" in part.

    Raises:
      ValueError: `arg` has another key or value.
    """
    given = base.parse_arg(
        arg, size="cpu", loss="every", readout="rmsnorm", penalty=0.0, between="none", loops=int
    )
    size, loops = given.pop("size"), given.pop("loops")
    if size not in SIZES:
        raise ValueError(f"size = {size!r}; allowed: {', '.join(SIZES)}")
    return run(size, Condition(**given), loops=loops)


def run(size: str, condition: Condition, *, loops: int | None = None, seed: int = 0) -> ConfigDict:
    """A run of one size under one condition; `loops` None takes the size's."""
    shape = SIZES[size]
    small = size == "cpu"
    c = base.get_config()
    c.name = condition.name
    c.study = "readout"
    c.seed = seed
    c.data.folder = "data/novels_512" if small else "data/pretraining"
    if shape.follows_the_paper:
        c.data.folder = "data/wikitext103_20k"
    c.data.sequence_length = shape.max_length
    c.data.batch_size = shape.batch_size
    c.budget.tokens = shape.tokens
    c.model = model(shape, loops or shape.loops)
    if size == "ouro":
        like_ouro(c.model)
    condition.apply(c)
    c.depth = base.fixed_depth()
    c.optimizer = base.adamw(
        rate=shape.rate, decay=0.01, clip_norm=1.0, warmup_steps=shape.warmup_steps,
        warmdown_share=0.0 if shape.follows_the_paper else 1 - shape.warmup_steps / shape.steps,
    )  # fmt: skip
    if shape.follows_the_paper:
        c.optimizer.b2 = 0.999
        c.optimizer.decayed_groups = ("matrix", "embedding", "norm")
    c.checkpoint.every_steps = 200 if small else 1000
    if not small:
        c.model.compute_dtype = "bfloat16"
        c.model.attention = "auto"
        c.model.remat = "layer"
        c.evaluation.max_windows = 2048
    return c


def model(shape: Size, loops: int) -> ConfigDict:
    """The readout family: pre-norm SwiGLU layers, learned positions, a tied head, no prelude or
    coda, the embedding as the first state."""
    m = base.isodepth_model(
        vocab_size=shape.vocab_size, width=shape.width, head_dim=shape.width // shape.heads,
        effective_layers=shape.layers, ends=0, recurrences=1, max_length=shape.max_length,
    )  # fmt: skip
    m.mlp_hidden = shape.mlp_hidden
    m.recurrences = loops
    m.mlp = "gated_silu"
    m.qk_norm = False
    m.positions = "learned"
    m.embedding_norm = False
    m.softcap = 0.0
    m.tied_head = True
    m.dropout = shape.dropout
    m.init = "normal"
    m.init_std = 0.02
    m.embedding_init_std = 0.02
    m.head_init_std = 0.0
    return m


def like_ouro(m: ConfigDict) -> None:
    """Rotary positions and a head of its own, as in the published 1.4B model."""
    m.positions = "rope_half"
    m.rope_base = 1e6
    m.tied_head = False
    m.head_init_std = 0.02
