"""One model at every depth: r is drawn anew at each step (arXiv:2607.14427, arXiv:2502.05171).

    python -m looped_jax.data.prepare --source=bundled --out=data/novels_512 --vocab_size=512
    python -m looped_jax.train --config=configs/elastic_depth.py --workdir=runs/elastic
    python -m looped_jax.evaluate --workdir=runs/elastic --suites=depth,convergence,exits

`--config=configs/elastic_depth.py:mean=8,depth=fixed` chooses another mean, or trains at that depth
only. Two sizes need accelerators and a prepared corpus:

    size=huginn   the published 3.5B model of arXiv:2502.05171: mean 32, gradients through the last
                  8, 65,536 tokens in data/pretraining
    size=86m      a model of 85.6M parameters, 57.3M of them matrices, as arXiv:2607.14427 measures:
                  12.9B tokens of FineWeb-Edu in 49,209 steps, in data/fineweb_edu_49k. The paper
                  gives these totals; the shape that meets them is ours.
"""

from ml_collections import ConfigDict

from configs import base

DEPTHS = ("lognormal_poisson", "uniform", "fixed")
SIZES = ("cpu", "86m", "huginn")


def get_config(arg: str = "") -> ConfigDict:
    """A run; `arg` is "size=cpu,mean=4,depth=lognormal_poisson" or a part of it.

    Raises:
      ValueError: `arg` has another key or value.
    """
    given = base.parse_arg(arg, size="cpu", mean=int, depth="lognormal_poisson")
    for key, allowed in (("size", SIZES), ("depth", DEPTHS)):
        if given[key] not in allowed:
            raise ValueError(f"{key} = {given[key]!r}; allowed: {', '.join(allowed)}")
    if given["size"] == "86m":
        return fineweb_86m(mean=given["mean"] or 8, depth=given["depth"])
    if given["size"] == "huginn":
        return huginn(mean=given["mean"] or 32, depth=given["depth"])
    return cpu(mean=given["mean"] or 4, depth=given["depth"])


def cpu(*, mean: int, depth: str) -> ConfigDict:
    """2 + 2 x r layers of width 64 on the bundled novels, for two CPU cores."""
    c = base.get_config()
    c.name = f"{depth}_mean{mean}"
    c.study = "elastic"
    c.data.folder = "data/novels_512"
    c.data.sequence_length = 64
    c.data.batch_size = 16
    c.budget.tokens = 1.5e6
    c.model = model(
        vocab_size=512, width=64, heads=4, mlp_hidden=192, layers=(2, 2, 0), mean=mean,
        max_length=64,
    )  # fmt: skip
    # Zeros, so that what an evaluation measures holds no noise of the start.
    c.model.initial_state = "zeros"
    c.model.initial_state_std = 0.0
    c.depth = depth_section(depth, mean, c.model.max_recurrences)
    steps = c.budget.tokens / (c.data.batch_size * c.data.sequence_length)
    c.optimizer = base.adamw(
        rate=1e-2, decay=0.1, clip_norm=1.0, warmup_steps=100, warmdown_share=1 - 100 / steps
    )
    c.evaluation.batch_size = 64
    c.checkpoint.every_steps = 200
    return c


def fineweb_86m(*, mean: int, depth: str) -> ConfigDict:
    """85.6M parameters: 2 + 4 x r + 2 layers of width 576, T = 2,048, a head of its own."""
    c = base.get_config()
    c.name = f"86m_{depth}_mean{mean}"
    c.study = "elastic"
    c.data.folder = "data/fineweb_edu_49k"
    c.data.sequence_length = 2048
    c.data.batch_size = 128  # 262,144 tokens a step
    c.budget.tokens = 0.0
    c.budget.steps = 49_209
    c.model = model(
        vocab_size=49_152, width=576, heads=9, mlp_hidden=1280, layers=(2, 4, 2), mean=mean,
        max_length=2048,
    )  # fmt: skip
    c.model.tied_head = False
    c.model.head_init_std = c.model.init_std
    c.model.remat = "layer"
    c.model.compute_dtype = "bfloat16"
    c.model.attention = "auto"
    c.depth = depth_section(depth, mean + 1, c.model.max_recurrences)
    c.optimizer = base.adamw(
        rate=1e-3, decay=0.1, clip_norm=1.0, warmup_steps=1000, warmdown_share=1 - 1000 / 49_209
    )
    return c


def huginn(*, mean: int, depth: str) -> ConfigDict:
    """The 3.5B model of arXiv:2502.05171: 2 + 4 x r + 2 layers of width 5,280, T = 4,096."""
    c = base.get_config()
    c.name = f"huginn_{depth}_mean{mean}"
    c.study = "elastic"
    c.data.folder = "data/pretraining"
    c.data.sequence_length = 4096
    c.data.batch_size = 4096  # 16.8M tokens a step
    c.data.microbatches = 32  # of one sequence a device on 128 devices
    c.budget.tokens = 8e11
    c.model = model(
        vocab_size=65536, width=5280, heads=55, mlp_hidden=17920, layers=(2, 4, 2), mean=mean,
        max_length=4096,
    )  # fmt: skip
    c.model.backprop_recurrences = 8
    c.model.remat = "layer"
    c.model.compute_dtype = "bfloat16"
    c.model.attention = "auto"
    # The published sampler adds 1 to a Poisson draw of this mean: it draws 33 in the mean.
    c.depth = depth_section(depth, mean + 1, c.model.max_recurrences)
    c.optimizer = base.adamw(
        rate=5e-4, decay=1e-4, clip_norm=1.0, warmup_steps=4096, warmdown_share=0.0
    )
    c.mesh = "data:-1,fsdp:8,tensor:1"
    return c


def model(
    *,
    vocab_size: int,
    width: int,
    heads: int,
    mlp_hidden: int,
    layers: tuple[int, int, int],
    mean: int,
    max_length: int,
) -> ConfigDict:
    """The depth-recurrent model: sandwich norms, gated MLP, the input injected at every recurrence.

    Weights are drawn with variance 2 / (5 D); the published code draws output projections smaller
    still, by the depth.
    """
    std = (2 / (5 * width)) ** 0.5
    m = base.isodepth_model(
        vocab_size=vocab_size, width=width, head_dim=width // heads, effective_layers=4, ends=1,
        recurrences=2, max_length=max_length, injection="linear",
    )  # fmt: skip
    m.mlp_hidden = mlp_hidden
    m.prelude_layers, m.core_layers, m.coda_layers = layers
    m.recurrences = mean  # the depth of the final validation loss
    del m.max_recurrences  # in the base it follows recurrences
    m.max_recurrences = 3 * mean
    m.layer = "sandwich"
    m.mlp = "gated_silu"
    m.qk_norm = False
    m.qk_bias = True
    m.positions = "rope_interleaved"
    m.rope_base = 50_000.0
    m.embedding_scale = width**0.5
    m.embedding_norm = False
    m.injection_order = "state_first"
    m.initial_state = "noise"
    m.initial_state_std = (2 / 5) ** 0.5
    m.state_norm = "last"
    m.share_state_and_final_norm = True
    m.softcap = 0.0
    m.tied_head = True
    m.init = "normal"
    m.init_std = std
    m.embedding_init_std = std
    m.head_init_std = 0.0
    return m


def depth_section(depth: str, mean: int, maximum: int) -> ConfigDict:
    """How r is drawn: every sampler has the same mean."""
    if depth == "fixed":
        return base.fixed_depth()
    drawn = base.lognormal_poisson_depth(mean=float(mean), sigma=0.5, minimum=1, maximum=maximum)
    if depth == "uniform":
        drawn.kind, drawn.sigma, drawn.maximum = "uniform", 0.0, 2 * mean - 1
    return drawn
