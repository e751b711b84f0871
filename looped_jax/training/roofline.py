"""The least time that a training step can take on a chip, by part, and what bounds it.

Every part multiplies, which the chip's peak bounds, and moves bytes between memory and chip, which
its bandwidth bounds: its time is at least the longer of the two (Williams et al. 2009). The counts
are of what is executed: recomputation included, attention over the blocks that a kernel runs.
Elementwise operations are taken as fused into the products beside them, so the step's bound is
optimistic, and the share of the peak that follows from it (MFU) one that no run exceeds.
"""

import dataclasses
import math
from collections.abc import Mapping

from looped_jax.config import MuonHRule, RunConfig
from looped_jax.errors import UserError
from looped_jax.model.accounting import count_parameters
from looped_jax.model.config import ModelConfig
from looped_jax.training.record.utilisation import peak_flops


@dataclasses.dataclass(frozen=True)
class Chip:
    """What the vendor's data sheet says of one chip.

    Attributes:
      kind: as JAX names it; `utilisation.PEAK_FLOPS` has its dense bfloat16 FLOP/s.
      bandwidth: of its memory, bytes a second.
      links: to other chips of one slice or node, bytes a second, sent and received together.
      memory_bytes: its memory.
    """

    kind: str
    bandwidth: float
    links: float
    memory_bytes: float


CHIPS = {
    "v5e": Chip("TPU v5 lite", 819e9, 200e9, 16e9),
    "v5p": Chip("TPU v5p", 2765e9, 600e9, 95e9),
    "v6e": Chip("TPU v6 lite", 1640e9, 448e9, 32e9),
    "H100": Chip("NVIDIA H100", 3350e9, 900e9, 80e9),
    "H200": Chip("NVIDIA H200", 4800e9, 900e9, 141e9),
}
# Bytes of one number: float32 (parameters, gradients, moments, scores) and activations.
WIDE = 4
# Passes over plain attention's float32 scores: written and read forward; with the backward pass and
# its recomputation as the TPU compiler's program for iso-depth s = 10 moves them.
SCORE_PASSES_FORWARD, SCORE_PASSES_BACKWARD = 2, 8
# Shares of the T x T square that are computed: plain blocks of queries, fused kernels.
PLAIN_SHARE, FUSED_SHARE = 5 / 8, 1 / 2
# Bytes of one logit in the chunked loss: written and read, its gradient written and read twice.
BYTES_OF_A_LOGIT = 14
NEWTON_SCHULZ_STEPS = 5
# Bytes of one parameter in the update: gradient, parameter and moments read, all but one written.
UPDATE_BYTES = {"muonh": 20, "adamw": 28}


@dataclasses.dataclass(frozen=True)
class Part:
    """What one device does of a step in one part of the model."""

    name: str
    flops: float
    bytes: float

    def seconds(self, chip: Chip) -> float:
        return max(self.flops / _peak(chip), self.bytes / chip.bandwidth)

    def bound(self, chip: Chip) -> str:
        return "FLOPs" if self.flops / _peak(chip) >= self.bytes / chip.bandwidth else "memory"


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The parts of a step on one device, and what the devices send each other.

    Attributes:
      collective_bytes: sent and received by one device, by what they are.
      model_flops: of the step on one device by the analytic count, nothing recomputed.
    """

    chip: Chip
    parts: tuple[Part, ...]
    collective_bytes: Mapping[str, float]
    model_flops: float

    @property
    def seconds(self) -> float:
        """Of a step, at least: all parts one after the other, collectives beside them."""
        return max(sum(part.seconds(self.chip) for part in self.parts), self.link_seconds)

    @property
    def link_seconds(self) -> float:
        return sum(self.collective_bytes.values()) / self.chip.links

    @property
    def utilisation(self) -> float:
        """The largest share of the peak FLOP/s (MFU) that a step can reach."""
        return self.model_flops / (self.seconds * _peak(self.chip))

    @property
    def limit(self) -> str:
        """What takes most of the bound."""
        if self.link_seconds >= self.seconds:
            return "the links between chips"
        longest = max(self.parts, key=lambda part: part.seconds(self.chip))
        share = longest.seconds(self.chip) / self.seconds
        return f"{longest.bound(self.chip)} of {longest.name}, {share:.0%} of it"

    def table(self) -> str:
        """All of it as lines of plain text."""
        c = self.chip
        lines = [f"{'a step on one chip, at least':<28}{'GFLOP':>10}{'GiB':>9}{'ms':>9}  bound by"]
        lines += [
            f"  {p.name:<26}{p.flops / 1e9:>10,.0f}{p.bytes / 2**30:>9.2f}"
            f"{p.seconds(c) * 1e3:>9.2f}  {p.bound(c)}"
            for p in self.parts
        ]
        lines += [
            f"  {name:<36}{size / 2**30:>9.2f}{size / c.links * 1e3:>9.2f}  links"
            for name, size in self.collective_bytes.items()
        ]
        return "\n".join(
            [
                *lines,
                f"step {self.seconds * 1e3:.1f} ms at least, MFU {self.utilisation:.2f} at most; "
                f"limited by {self.limit}",
            ]
        )


def chip_of(topology: str) -> Chip:
    """The chip of a topology like "v5e:2x4" or "H100:8".

    Raises:
      UserError: none that the table has.
    """
    name = topology.partition(":")[0]
    if name not in CHIPS:
        raise UserError(f"topology {topology!r}: chip {name!r}; allowed: {', '.join(CHIPS)}")
    return CHIPS[name]


def roofline(run: RunConfig, mesh: Mapping[str, int], chip: Chip, kernel: str) -> Roofline:
    """Counts a step of a run.

    Args:
      mesh: devices by axis.
      kernel: of attention, "xla", "splash" or "cudnn".
    """
    model, tensor = run.model, mesh["tensor"]
    rows = mesh["data"] * mesh["fsdp"]
    tokens = run.batch_tokens / rows
    parts = (
        _embed(model, tokens),
        _attention(run, tokens, tensor, kernel),
        _mlp(run, tokens, tensor),
        _injection(run, tokens),
        _head(model, tokens, tensor),
        *_update(run, mesh),
    )
    flops = run.flops_per_token * run.batch_tokens / math.prod(mesh.values())
    return Roofline(chip, parts, _collectives(run, mesh, tokens), flops)


def _executions(run: RunConfig) -> tuple[float, float]:
    """(Layers that a token passes forward, those that gradients pass), recurrences counted."""
    m = run.model
    depth = run.depth.mean or m.recurrences
    window = min(m.backprop_recurrences or depth, depth)
    ends = m.prelude_layers + m.coda_layers
    return ends + depth * m.core_layers, ends + window * m.core_layers


def _products(run: RunConfig, name: str, tokens: float, weights: float, numbers: float) -> Part:
    """Products of every layer: so many weights, and numbers read and written for each token.

    The backward pass has two products for each of the forward pass, and a gradient in float32.
    """
    forward, backward = _executions(run)
    again = backward if run.model.remat == "layer" else 0.0
    passes = forward + again + 2 * backward
    activations = passes * tokens * numbers * _narrow(run.model)
    return Part(
        name,
        passes * 2 * tokens * weights,
        activations + passes * run.data.microbatches * weights * WIDE,
    )


def _attention(run: RunConfig, tokens: float, tensor: int, kernel: str) -> Part:
    m, T = run.model, run.data.sequence_length
    width = m.attention_width / tensor
    projections = _products(run, "attention", tokens, 4 * m.width * width, 2 * m.width + 4 * width)
    forward, backward = _executions(run)
    again = 0.0 if m.remat == "none" else backward
    share = PLAIN_SHARE if kernel == "xla" else FUSED_SHARE
    square = tokens * T * share
    # Fused kernels compute the scores once more in the backward pass, and keep none.
    backward_products = 4 if kernel == "xla" else 5
    flops = (2 * (forward + again) + backward_products * backward) * 2 * square * width
    if kernel == "xla":
        scores = square * m.heads / tensor * WIDE
        moved = scores * (SCORE_PASSES_FORWARD * forward + SCORE_PASSES_BACKWARD * backward)
    else:
        moved = tokens * width * _narrow(m) * (4 * (forward + again) + 8 * backward)
    return Part("attention", projections.flops + flops, projections.bytes + moved)


def _mlp(run: RunConfig, tokens: float, tensor: int) -> Part:
    m = run.model
    matrices = 3 if m.mlp == "gated_silu" else 2
    hidden = m.mlp_hidden / tensor
    return _products(run, "MLP", tokens, matrices * m.width * hidden, 2 * (m.width + hidden))


def _injection(run: RunConfig, tokens: float) -> Part:
    m = run.model
    layers = m.core_layers
    forward, backward = ((n - m.prelude_layers - m.coda_layers) / layers for n in _executions(run))
    passes = forward + 3 * backward if m.remat != "none" else forward + 2 * backward
    weights = count_parameters(m).n_inject
    moved = passes * (3 * tokens * m.width * _narrow(m) + weights * WIDE)
    return Part("injection", passes * 2 * tokens * weights, moved)


def _embed(model: ModelConfig, tokens: float) -> Part:
    # Rows looked up and written; their gradients read and added to the table's rows.
    return Part("embed", 0.0, tokens * model.width * (WIDE + 3 * _narrow(model) + 2 * WIDE))


def _head(model: ModelConfig, tokens: float, tensor: int) -> Part:
    weights = model.width * model.vocab_rows / tensor
    logits = tokens * model.vocab_rows / tensor * BYTES_OF_A_LOGIT
    moved = logits + tokens * model.width * _narrow(model) * 4 + 3 * weights * WIDE
    return Part("head", 3 * 2 * tokens * weights, moved)


def _update(run: RunConfig, mesh: Mapping[str, int]) -> tuple[Part, ...]:
    """Newton-Schulz, by how `parallel.share_out` divides matrices over devices; and elementwise."""
    parameters = count_parameters(run.model)
    matrices = parameters.n_once + parameters.n_rec + parameters.n_inject
    held = mesh["fsdp"] * mesh["tensor"]
    if not isinstance(run.optimizer.rule, MuonHRule):
        return (Part("update", 0.0, parameters.total / held * UPDATE_BYTES["adamw"]),)
    flops = moved = 0.0
    for count, rows, columns in _matrices(run.model):
        whole = mesh["data"] * (mesh["fsdp"] if mesh["tensor"] == 1 and count > 1 else 1)
        of_device = math.ceil(count / whole) * whole / math.prod(mesh.values())
        small, large = min(rows, columns), max(rows, columns)
        flops += of_device * NEWTON_SCHULZ_STEPS * (4 * small**2 * large + 2 * small**3)
        moved += of_device * NEWTON_SCHULZ_STEPS * (3 * small * large + 4 * small**2) * WIDE
    others = parameters.total - matrices
    update = matrices * UPDATE_BYTES["muonh"] + others * UPDATE_BYTES["adamw"]
    return Part("Newton-Schulz", flops, moved), Part("update", 0.0, update / held)


def _matrices(m: ModelConfig) -> list[tuple[int, int, int]]:
    """(How many, rows, columns) of the matrices that Newton-Schulz takes together."""
    stacks = m.prelude_layers + m.core_layers + m.coda_layers
    up = 2 if m.mlp == "gated_silu" else 1
    found = [
        (3 * stacks, m.width, m.attention_width),
        (stacks, m.attention_width, m.width),
        (up * stacks, m.width, m.mlp_hidden),
        (stacks, m.mlp_hidden, m.width),
    ]
    if inject := count_parameters(m).n_inject:
        found.append((1, inject // m.width, m.width))
    return found


def _collectives(run: RunConfig, mesh: Mapping[str, int], tokens: float) -> dict[str, float]:
    """Bytes that a device sends and receives, by rings: an all-reduce is twice an all-gather."""
    m, parameters = run.model, count_parameters(run.model)
    held = parameters.total / (mesh["fsdp"] * mesh["tensor"]) * WIDE
    matrices = parameters.n_once + parameters.n_rec + parameters.n_inject
    around = lambda axis: 2 * (mesh[axis] - 1) / mesh[axis]
    forward, backward = _executions(run)
    found = {
        "gradients over data": 2 * around("data") * held,
        # Gathered for each use, forward, recomputed and backward; gradients scattered once a use.
        "parameters over fsdp": around("fsdp")
        * (parameters.total / mesh["tensor"] * WIDE)
        * (forward + 3 * backward)
        / (m.prelude_layers + m.core_layers + m.coda_layers)
        * run.data.microbatches,
        "activations over tensor": 2
        * around("tensor")
        * tokens * m.width * _narrow(m) * 2 * (forward + 2 * backward),
    }  # fmt: skip
    if isinstance(run.optimizer.rule, MuonHRule):
        shared = matrices / (mesh["fsdp"] * mesh["tensor"]) * WIDE
        found["matrices over data"] = around("data") * shared
    return {name: size for name, size in found.items() if size}


def _narrow(model: ModelConfig) -> int:
    return 2 if model.compute_dtype == "bfloat16" else WIDE


def _peak(chip: Chip) -> float:
    peak = peak_flops(chip.kind)
    assert peak is not None, chip.kind
    return peak
