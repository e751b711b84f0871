"""The whole stack looped, and what its readout shows to the loss (arXiv:2606.24898).

    python -m looped_jax.data.prepare --source=bundled --out=data/novels_512 --vocab_size=512
    python -m looped_jax.train --config=configs/readout.py --workdir=runs/readout
    python -m looped_jax.evaluate --workdir=runs/readout --suites=loss,readout

`--config=configs/readout.py:loss=last,readout=raw` chooses a condition:

    loss=every|last          cross-entropy at every loop or at the last
    readout=rmsnorm|raw|last RMSNorm before the head at every loop, at none, or at the last only
    penalty=0.01             lambda of the norm penalty, lambda x mean over loops of mean(H_k^2)
    between=none|rmsnorm     RMSNorm on the state between the loops
    loops=4                  K, loops over the stack

Loops are weighed by `--config.loss.loop_weights="(0.1,0.2,0.3,0.4)"`. `size=44m` and `size=129m`
have the published numbers of parameters (with the 50,257 tokens of GPT-2), `size=1.4b` is the shape
of Ouro (arXiv:2510.25741) with 49,152 tokens; they need accelerators and a prepared corpus.
"""

import dataclasses

from ml_collections import ConfigDict

from configs import base

LOSSES = ("every", "last")
READOUTS = {"rmsnorm": "every", "raw": "none", "last": "last"}  # -> model.readout_norm
BETWEEN = {"none": "none", "rmsnorm": "every"}  # -> model.state_norm


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


SIZES = {
    # The rate is that of configs/studies/readout_quickstart.py; dropout has no place in less than
    # an epoch.
    "cpu": Size(2, 32, 2, 128, 512, 64, 6, 8, 7e5, 6e-3, 50, 0.0),
    "44m": Size(4, 512, 8, 2048, 50_257, 2048, 4, 256, 2.5e9, 3e-4, 500, 0.1),
    "129m": Size(6, 1024, 16, 2736, 50_257, 2048, 4, 256, 2.5e9, 3e-4, 500, 0.1),
    "1.4b": Size(24, 2048, 16, 5632, 49_152, 4096, 4, 1024, 1e11, 3e-4, 2000, 0.0),
}


def get_config(arg: str = "") -> ConfigDict:
    """A run; `arg` is "size=44m,loss=every,readout=raw,penalty=0.01,between=none,loops=4" in part.

    Raises:
      ValueError: `arg` has another key or value.
    """
    given: dict[str, str] = {}
    for item in filter(None, arg.split(",")):
        key, _, value = item.partition("=")
        if key not in ("size", "loss", "readout", "penalty", "between", "loops"):
            raise ValueError(
                f"{key!r} in configs/readout.py:{arg}; allowed: size, loss, readout, penalty, "
                "between, loops"
            )
        given[key] = value
    size = given.pop("size", "cpu")
    if size not in SIZES:
        raise ValueError(f"size = {size!r}; allowed: {', '.join(SIZES)}")
    loops = _number(given, "loops", int, SIZES[size].loops)
    penalty = _number(given, "penalty", float, 0.0)
    return run(size, Condition(**given, penalty=penalty), loops=loops)


def run(size: str, condition: Condition, *, loops: int | None = None, seed: int = 0) -> ConfigDict:
    """A run of one size under one condition; `loops` None takes the size's."""
    shape = SIZES[size]
    small = size == "cpu"
    c = base.get_config()
    c.name = condition.name
    c.study = "readout"
    c.seed = seed
    c.data.folder = "data/novels_512" if small else "data/pretraining"
    c.data.sequence_length = shape.max_length
    c.data.batch_size = shape.batch_size
    c.budget.tokens = shape.tokens
    c.model = model(shape, loops or shape.loops)
    if size == "1.4b":
        like_ouro(c.model)
    condition.apply(c)
    c.depth = base.fixed_depth()
    c.optimizer = base.adamw(
        rate=shape.rate, decay=0.01, clip_norm=1.0, warmup_steps=shape.warmup_steps,
        warmdown_share=1 - shape.warmup_steps / shape.steps,
    )  # fmt: skip
    c.checkpoint.every_steps = 200 if small else 1000
    if not small:
        c.model.compute_dtype = "bfloat16"
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


def _number(given: dict[str, str], key: str, kind: type, default: float):
    text = given.pop(key, "")
    try:
        return kind(text) if text else default
    except ValueError:
        raise ValueError(f"{key} = {text!r}; allowed: a number") from None
