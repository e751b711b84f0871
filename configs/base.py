"""The whole config tree, every key with its meaning. Other configs start from here.

`get_config()` is a small looped model on the bundled novels; `isodepth_model`, `muonh_adamw`,
`adamw`, `fixed_depth` and `lognormal_poisson_depth` are the parts that configs put together, and
`parse_arg` reads what stands after the colon of `--config=configs/NAME.py:r=4,width=32`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_collections
from ml_collections import ConfigDict, FieldReference

from looped_jax.model.accounting import count_parameters
from looped_jax.model.config import ModelConfig, isodepth_split
from looped_jax.training.transfer import reference_tokens


def get_config() -> ConfigDict:
    """A looped model (1 + 2 x 4 + 1 layers, width 64) for 2e7 tokens: a starting point."""
    c = ml_collections.ConfigDict()
    c.name = "base"  # names the run in tables and logs
    c.study = ""  # the study that a run belongs to; "" for a run by itself
    # Parameters, order of the data, sampled depths, dropout: 0 to 2**32 - 1.
    c.seed = 0

    # A run folder to begin with the parameters of, as far as they fit: names, shapes, and layers
    # counted from both ends. What is taken over, made new and dropped is said and written down.
    c.init_from = ""
    c.init_from_step = 0  # which of its checkpoints; 0: the newest

    c.data = ConfigDict()
    c.data.folder = "data/novels"  # made by looped_jax.data.prepare
    c.data.sequence_length = 128  # T, tokens predicted per sequence
    c.data.batch_size = 16  # sequences per optimiser step, over all devices
    c.data.microbatches = 1  # parts of the batch computed one after another, to save memory
    # Read all of the folder once for a run, processes sharing the files, and compare its digests;
    # False: only sizes and manifest.
    c.data.verify = True

    c.budget = ConfigDict()  # exactly one of the three; 0 = not this one
    c.budget.steps = 0  # optimiser steps
    c.budget.tokens = 2e7  # training tokens D
    c.budget.flops = 0.0  # training FLOPs C, by the analytic count

    c.model = isodepth_model(
        vocab_size=2048, width=64, head_dim=32, effective_layers=10, ends=1, recurrences=4,
        max_length=c.data.sequence_length,
    )  # fmt: skip
    c.depth = fixed_depth()

    c.loss = ConfigDict()
    # "last": the loss of the last loop; "every": of all loops; "by_loop": of all loops, each
    # against a target of its own, which the data has to hold.
    c.loss.supervision = "last"
    c.loss.loop_weights = ()  # not with "last": a weight per loop; () = equal, summing to 1
    c.loss.norm_penalty = 0.0  # lambda x mean over loops of mean(H_k^2)
    c.loss.chunk = 4096  # most tokens whose logits exist at one time

    c.optimizer = muonh_adamw(d_ref=64, batch_ref=2048, tokens_ref=2e7)

    c.checkpoint = ConfigDict()
    c.checkpoint.every_steps = 1000  # 0: not by steps
    c.checkpoint.every_minutes = 0.0  # since the last one; 0: not by time
    c.checkpoint.milestones = ()  # steps that are saved, too, and stay for good
    c.checkpoint.keep = 2  # complete checkpoints that stay beside the milestones

    c.log = ConfigDict()
    c.log.every_steps = 20  # lines of metrics.jsonl, points of TensorBoard

    c.profile = ConfigDict()
    # A profiler trace of these steps, first and last, in the run's folder `profile`; (): none.
    c.profile.steps = ()

    c.evaluation = ConfigDict()
    c.evaluation.every_steps = 0  # validation loss during training; 0: only at the end
    # Sequences per evaluation step, over all devices; filled up to what divides over them.
    c.evaluation.batch_size = 32
    c.evaluation.max_windows = 0  # only the first so many windows; 0: all

    # Devices: "data" copies parameters, "fsdp" and "tensor" split them; -1 takes what is left.
    c.mesh = "data:-1,fsdp:1,tensor:1"

    c.processes = ConfigDict()
    # Processes that train this run together: more than 1 on a pod or on several nodes. They are
    # started by srun, mpirun or a TPU pod, or get JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    # JAX_PROCESS_ID.
    c.processes.count = 1
    c.processes.connect_seconds = 300  # after which they give up waiting for each other
    # When no step ends for so long, compiling and saving included, the run hangs: it is ended as
    # failed, on all processes. 0: never.
    c.processes.stall_minutes = 60.0
    return c


def parse_arg(arg: str, **defaults: Any) -> dict[str, Any]:
    """The values of "r=4,width=32", typed as the defaults are.

    Args:
      arg: KEY=VALUE items, separated by commas; "" for none.
      defaults: every key that is allowed. A value is the default and gives the type; a type alone
        (`flops=float`) stands for a value of that type, None where it is not given.

    Raises:
      ValueError: a key that is not allowed or stands twice, or a value of another type.
    """
    given: dict[str, Any] = {}
    for item in filter(None, arg.split(",")):
        key, equals, text = item.partition("=")
        if not equals or key not in defaults or key in given:
            why = "twice" if key in given else f"allowed: KEY=VALUE with {', '.join(defaults)}"
            raise ValueError(f"{item!r} in the argument {arg!r}; {why}")
        kind = defaults[key] if isinstance(defaults[key], type) else type(defaults[key])
        try:
            given[key] = _FROM_TEXT[kind](text)
        except (ValueError, KeyError):
            raise ValueError(f"{key} = {text!r}; allowed: {_NAMES[kind]}") from None
    unset = {key: None if isinstance(value, type) else value for key, value in defaults.items()}
    return unset | given


def parse_scale(arg: str) -> str:
    """The scale of a study that has two: "published" (accelerators), or "scale=laptop".

    Raises:
      ValueError: another key or scale.
    """
    scale = parse_arg(arg, scale="published")["scale"]
    if scale not in ("published", "laptop"):
        raise ValueError(f"scale = {scale!r}; allowed: published, laptop")
    return scale


_FROM_TEXT: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: {"true": True, "false": False}.__getitem__,
}
_NAMES = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def isodepth_model(
    *,
    vocab_size: int,
    vocab_multiple: int = 1,
    width: int,
    head_dim: int,
    effective_layers: int,
    ends: int,
    recurrences: int,
    max_length: int,
    injection: str = "linear",
) -> ConfigDict:
    """The model of the iso-depth study (arXiv:2604.21106): `ends` + looped layers + `ends`."""
    prelude, core, coda = isodepth_split(effective_layers, ends, recurrences)
    m = ConfigDict()
    m.vocab_size = vocab_size  # V
    # Embedding and head get rows up to a multiple of this (64 suits matrix units and tensor:N); no
    # token has the added ones, and the softmax leaves them out.
    m.vocab_multiple = vocab_multiple
    m.width = width  # D
    m.head_dim = head_dim
    m.heads = m.get_ref("width") // m.get_ref("head_dim")  # H; follows an override of width
    m.mlp_hidden = 4 * m.get_ref("width")  # F; follows an override of width
    m.prelude_layers = prelude  # unshared layers before the loop
    m.core_layers = core  # layers of the recurrent block
    m.coda_layers = coda  # unshared layers after the loop
    m.recurrences = recurrences  # r, times the block is applied
    m.max_recurrences = m.get_ref("recurrences")  # most recurrences that training may draw
    m.backprop_recurrences = 0  # gradients through the last k recurrences only; 0 = all
    m.layer = "pre_norm"  # or "sandwich"
    m.mlp = "relu2"  # or "gated_silu"
    m.qk_norm = True  # RMSNorm without scale on queries and keys
    m.qk_bias = False  # a bias on queries and keys
    m.positions = "rope_half"  # rotary pairs (i, i + d/2); "rope_interleaved"; "learned"
    m.rope_base = 10_000.0
    m.max_length = max_length  # longest sequence (the table's length with learned positions)
    m.embedding_scale = 1.0  # multiplies the embedding
    m.embedding_norm = True  # RMSNorm after the embedding
    # How a recurrence sees the prelude's output e: "passthrough" (not at all), "additive" (h + e),
    # "linear" (W [e, h]), "diagonal" (decay * h + step * W e), "hyperconnect" (lanes).
    m.injection = injection if recurrences > 1 else "passthrough"
    m.injection_order = "input_first"  # linear: [e, h], or "state_first": [h, e]
    # K residual lanes of hyperconnections; follows an override of the injection.
    m.lanes = derived(m.get_ref("injection"), lambda kind: 2 if kind == "hyperconnect" else 0, int)
    # h before the first recurrence: "input" (e), "zeros", or "noise" (truncated normal). As
    # published for the injection, which it follows: zeros with "additive".
    m.initial_state = derived(
        m.get_ref("injection"), lambda kind: "zeros" if kind == "additive" else "input", str
    )
    m.initial_state_std = 0.0  # standard deviation of that noise
    # RMSNorm on the state: after "every" recurrence, before it is read; "between" recurrences,
    # after it is read; after the "last" alone; or "none".
    m.state_norm = "every"
    m.share_state_and_final_norm = False  # one scale for the state's norm and the readout's
    m.readout_norm = "every"  # norm before the head: at "every" loop, the "last" only, or "none"
    m.softcap = 15.0  # logits -> cap * tanh(logits / cap); 0 = none
    m.tied_head = False  # the embedding is the unembedding
    m.norm_epsilon = 1e-6
    m.dropout = 0.0  # on both branches of every layer
    m.init = "uniform_fan_in"  # matrices uniform with variance 1/fan_in; or "normal"
    m.init_std = 0.0  # of matrices with init "normal"
    m.embedding_init_std = 1.0
    m.head_init_std = 0.001
    # What the backward pass computes again: "none"; "layer", all of each layer; "products", all but
    # the matrix products with parameters, whose results are kept.
    m.remat = "none"
    # "xla": plain products, which write the T x T scores to memory. Fused kernels: "splash" on
    # TPUs, "cudnn" in bfloat16 on NVIDIA GPUs. "auto": the platform's own if it can do the shape.
    m.attention = "xla"
    m.compute_dtype = "float32"  # "bfloat16" on accelerators
    return m


class Rule(NamedTuple):
    """How ml_collections wants an operation of a reference: function and arguments."""

    fn: Callable[..., Any]
    args: list[Any]


def derived(source: FieldReference, rule: Callable[[Any], Any], kind: type) -> FieldReference:
    """A value of type `kind` that is `rule(source)` as long as nothing else is set."""
    return FieldReference(kind(), kind, Rule(lambda _, value: rule(value), [source]))


def fixed_depth() -> ConfigDict:
    """Every step runs model.recurrences recurrences."""
    return ConfigDict({"kind": "fixed"})


def lognormal_poisson_depth(*, mean: float, sigma: float, minimum: int, maximum: int) -> ConfigDict:
    """r = Poisson(rate) + 1 with a log-normal rate, clipped; its mean is `mean`."""
    d = ConfigDict()
    d.kind = "lognormal_poisson"  # or "uniform" on [minimum, maximum]
    d.per = "step"  # one draw for the batch, or "sequence": one for each
    d.mean = mean  # of what is drawn, after clipping
    d.sigma = sigma  # standard deviation of log rate
    d.minimum = minimum
    d.maximum = maximum  # at most model.max_recurrences
    return d


def muonh_adamw(*, d_ref: int, batch_ref: int, tokens_ref: float) -> ConfigDict:
    """MuonH for the matrices, AdamW for the rest, with the HyperP transfer rules."""
    o = ConfigDict()
    o.kind = "muonh_adamw"
    o.momentum = 0.95  # of MuonH, Nesterov
    o.b1 = 0.8  # of AdamW
    o.b2 = 0.95
    o.eps = 1e-10
    o.warmup_steps = 0  # linear warm-up
    # Share of the run's steps, at its end, over which the rates fall linearly. 1: from the first
    # step on; 0.4: a plateau before (a trapezoid); 0: constant rates.
    o.warmdown_share = 1.0
    o.final_fraction = 0.1  # of the peak rates, reached at the end of the run
    o.rates = ConfigDict()  # peak rates at the reference below, by parameter group
    o.rates.matrix = 0.014
    o.rates.embedding = 0.3
    o.rates.unembedding = 0.004
    o.rates.norm = 0.005
    o.rates.lane = 0.01
    o.rates.bias = 0.005
    o.transfer = ConfigDict()  # from the reference at which the rates were tuned to this run
    o.transfer.d_ref = d_ref  # width
    o.transfer.batch_ref = batch_ref  # tokens per step
    o.transfer.tokens_ref = tokens_ref  # training tokens
    o.transfer.width_exponent = -0.5  # AdamW groups
    o.transfer.data_exponent = -0.32  # matrices
    o.transfer.matrix_batch_exponent = 0.558
    o.transfer.adamw_batch_exponent = 0.558  # embedding and unembedding
    return o


def adamw(
    *, rate: float, decay: float, clip_norm: float, warmup_steps: int, warmdown_share: float
) -> ConfigDict:
    """AdamW with one rate for all parameters."""
    o = ConfigDict()
    o.kind = "adamw"
    o.b1 = 0.9
    o.b2 = 0.95
    o.eps = 1e-8
    o.rate = rate  # peak
    o.decay = decay  # decoupled, times the rate
    o.decayed_groups = ("matrix", "embedding", "unembedding")  # parameter groups that decay
    o.clip_norm = clip_norm  # bound on the global gradient norm
    o.warmup_steps = warmup_steps  # linear warm-up
    o.warmdown_share = warmdown_share  # of the run's steps, at its end: see `muonh_adamw`
    o.final_fraction = 0.1  # of the peak rate, reached at the end of the run
    return o


def isodepth_reference_tokens(model: ConfigDict, tokens_per_parameter: float) -> float:
    """Tokens of the reference run: so many per parameter that a forward pass executes."""
    config = ModelConfig.from_tree(model.to_dict())
    n = count_parameters(config)
    executed = n.n_once + config.recurrences * (n.n_rec + n.n_inject)
    return reference_tokens(executed, tokens_per_parameter)
