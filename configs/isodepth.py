"""A run of the iso-depth study at its published scale (arXiv:2604.21106), on accelerators.

    python -m looped_jax.train --config=configs/isodepth.py:r=4,s=20,flops=4.64e18 --plan
    python -m looped_jax.train --config=configs/isodepth.py:r=4,s=20,flops=4.64e18 --workdir=DIR

The keys after the colon, with what they are when left out:

    r=4               recurrences: 2 + 16/r x r + 2 layers; r = 1 is a stack of 20 layers
    s=10              size: width 64 s, heads of 128
    flops=1e18        training FLOPs; or tokens=4.7e10
    injection=linear  or additive, passthrough, diagonal, hyperconnect (two lanes)
    backprop=0        gradients through the last so many recurrences; 0 for all
    rate=0.014        MuonH's rate at the reference, a model of s = 10 with 10 tokens a parameter

The text is FineWeb-Edu with a tokenizer of 32,001 tokens, in `data/fineweb_edu_32k`. The whole grid
is configs/studies/isodepth.py.
"""

from ml_collections import ConfigDict

from configs import base

EFFECTIVE_LAYERS, ENDS = 20, 2
WIDTH_PER_SIZE = 64
HEAD_DIM = 128
VOCABULARY, VOCABULARY_MULTIPLE = 32_001, 64  # 32,064 rows in both tables
SEQUENCE_LENGTH = 2048
BATCH_SIZE = 128  # sequences a step: 262,144 tokens
RATE = 0.014
# The reference at which the rates were tuned: s = 10, r = 4 for every looped model.
REFERENCE_SIZE, REFERENCE_RECURRENCES, TOKENS_PER_PARAMETER = 10, 4, 10.0


def get_config(arg: str = "") -> ConfigDict:
    """A run; `arg` is "r=4,s=10,flops=1e18,injection=linear,backprop=0,rate=0.014" in part.

    Raises:
      ValueError: `arg` has another key or value, or both flops and tokens.
    """
    given = base.parse_arg(
        arg, r=4, s=10, flops=float, tokens=float, injection="linear", backprop=0, rate=RATE
    )
    if given["flops"] is None and given["tokens"] is None:
        given["flops"] = 1e18
    return run(**given)


def run(
    *,
    r: int,
    s: int,
    flops: float | None = None,
    tokens: float | None = None,
    injection: str = "linear",
    backprop: int = 0,
    rate: float = RATE,
    batch_size: int = BATCH_SIZE,
) -> ConfigDict:
    """The config of one run, of so many training FLOPs or tokens.

    Raises:
      ValueError: an odd s, or not exactly one of flops and tokens.
    """
    if s < 2 or s % 2:
        raise ValueError(f"s = {s}; allowed: an even number (width {WIDTH_PER_SIZE} s, heads of "
                         f"{HEAD_DIM})")  # fmt: skip
    if (flops is None) == (tokens is None):
        raise ValueError(f"flops = {flops}, tokens = {tokens}; allowed: exactly one of them")
    c = base.get_config()
    c.study = "isodepth"
    c.name = _name(r, s, flops, tokens, injection, backprop)
    c.data.folder = "data/fineweb_edu_32k"
    c.data.sequence_length = SEQUENCE_LENGTH
    c.data.batch_size = batch_size
    c.budget.tokens = tokens or 0.0
    c.budget.flops = flops or 0.0
    c.model = model(r, s, injection)
    c.model.backprop_recurrences = backprop
    c.optimizer = base.muonh_adamw(
        d_ref=WIDTH_PER_SIZE * REFERENCE_SIZE,
        batch_ref=BATCH_SIZE * SEQUENCE_LENGTH,
        tokens_ref=base.isodepth_reference_tokens(
            model(REFERENCE_RECURRENCES if r > 1 else 1, REFERENCE_SIZE, injection),
            TOKENS_PER_PARAMETER,
        ),
    )
    c.optimizer.rates.matrix = rate
    c.evaluation.max_windows = 5120  # 10.5M tokens
    return c


def model(r: int, s: int, injection: str) -> ConfigDict:
    """The model of one recurrence and size."""
    width = WIDTH_PER_SIZE * s
    m = base.isodepth_model(
        vocab_size=VOCABULARY, vocab_multiple=VOCABULARY_MULTIPLE, width=width, head_dim=HEAD_DIM,
        effective_layers=EFFECTIVE_LAYERS, ends=ENDS, recurrences=r, max_length=SEQUENCE_LENGTH,
        injection=injection,
    )  # fmt: skip
    m.remat = "layer"
    m.compute_dtype = "bfloat16"
    m.attention = "auto"
    return m


def _name(
    r: int, s: int, flops: float | None, tokens: float | None, injection: str, backprop: int
) -> str:
    """Names the run as the published table does, and what differs from its baseline."""
    budget = f"{flops:.2e}" if flops else f"{tokens:.2e}tok"
    mantissa, exponent = budget.split("e+")
    parts = [f"isoflops_{mantissa.rstrip('0').rstrip('.')}e{exponent}", f"r{r}", f"s{s}"]
    if r > 1 and injection != "linear":
        parts.append(injection)
    if backprop:
        parts.append(f"backprop{backprop}")
    return "_".join(parts)
