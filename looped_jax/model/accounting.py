"""Parameters by part and FLOPs per token, counted analytically and aware of the loop.

XLA's own cost analysis counts a loop body once and is no substitute. A multiply-add is 2 FLOPs;
training counts forward + backward = 3 x forward; recomputed activations are not counted (the count
is of the model, not of the implementation). Attention is counted over the full T x T square, as the
published counts do (arXiv:2604.21106), and the head over all rows of its table.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.model.boxes import unboxed
from looped_jax.model.config import ModelConfig
from looped_jax.model.lm import LoopedLM


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Parameters by part of the tree; `core`, `prelude`, `coda` include their norm scales.

    Attributes:
      embedding: token and position tables.  head: untied unembedding (0 when tied).
      prelude, core, coda: one execution each.  injection: matrices or lanes of the injection.
      norms: scales outside the layers.
      n_once, n_rec, n_inject: matrices only, as the scaling law counts them: executed once, in the
        recurrent block, in the injection.
    """

    embedding: int
    head: int
    prelude: int
    core: int
    coda: int
    injection: int
    norms: int
    n_once: int
    n_rec: int
    n_inject: int

    @property
    def total(self) -> int:
        return (
            self.embedding + self.head + self.prelude + self.core + self.coda
            + self.injection + self.norms
        )  # fmt: skip


PART_OF = {
    "embed": "embedding", "positions": "embedding", "head": "head", "prelude": "prelude",
    "core": "core", "coda": "coda", "injection": "injection", "lanes": "injection",
    "embed_norm": "norms", "state_norm": "norms", "final_norm": "norms",
}  # fmt: skip


def abstract_parameters(config: ModelConfig) -> dict:
    """The parameter tree as shapes and dtypes, nothing allocated."""
    config = dataclasses.replace(config, remat="none")  # less to trace, the same parameters
    tokens_BT = jnp.zeros((1, 1), jnp.int32)
    rngs = {"params": jax.random.key(0), "state": jax.random.key(0)}
    init = lambda: LoopedLM(config).init(rngs, tokens_BT)["params"]
    return unboxed(jax.eval_shape(init))


@functools.lru_cache
def count_parameters(config: ModelConfig) -> Parameters:
    """Counts the parameters of a model by part.

    Raises:
      KeyError: a part of the tree that no row of PART_OF names.
    """
    parts = dict.fromkeys(PART_OF.values(), 0)
    matrices = dict.fromkeys(PART_OF.values(), 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_parameters(config)):
        part = PART_OF[path[0].key]
        parts[part] += int(np.prod(leaf.shape))
        if path[-1].key == "kernel":
            matrices[part] += int(np.prod(leaf.shape))
    return Parameters(
        **parts,
        n_once=matrices["prelude"] + matrices["coda"],
        n_rec=matrices["core"],
        n_inject=matrices["injection"],
    )


def forward_flops_per_token(config: ModelConfig, length: int, recurrences: float) -> float:
    """Forward FLOPs per token at a depth (which may be a mean), readout included.

    Args:
      length: sequence length T in tokens; attention costs 4 T A per layer and token.
      recurrences: executed recurrences; also the depth at which a token exits.
    """
    once, per_recurrence = _forward_parts(config, length)
    return once + recurrences * per_recurrence


def train_flops_per_token(
    config: ModelConfig, length: int, recurrences: float | None = None
) -> float:
    """Training FLOPs per token; recurrences outside the gradient window cost their forward only.

    `recurrences` None means the config's; a mean depth may be given for sampled depths (with a
    window the count is then that of the mean).
    """
    depth = config.recurrences if recurrences is None else recurrences
    window = config.backprop_recurrences or depth
    once, per_recurrence = _forward_parts(config, length)
    return 3 * once + per_recurrence * (depth + 2 * min(window, depth))


def readout_flops_per_token(config: ModelConfig, length: int) -> float:
    """Forward FLOPs of coda and head: what one look at an intermediate loop's output costs."""
    parameters = count_parameters(config)
    head = config.vocab_rows * config.width
    attention = 4 * length * config.attention_width * config.coda_layers
    return 2 * (parameters.coda + head) + attention


def _forward_parts(config: ModelConfig, length: int) -> tuple[int, int]:
    """(FLOPs outside the loop, FLOPs of one recurrence), forward, per token."""
    parameters = count_parameters(config)
    attention_layer = 4 * length * config.attention_width
    ends = config.prelude_layers + config.coda_layers
    head = config.vocab_rows * config.width
    once = 2 * (parameters.prelude + parameters.coda + head) + attention_layer * ends
    injection = parameters.n_inject
    if config.injection == "hyperconnect":
        # Reading K lanes, mixing K x K of them and writing K, each over the width.
        injection = config.width * (2 * config.lanes + config.lanes**2)
    per_recurrence = 2 * (parameters.core + injection) + attention_layer * config.core_layers
    return once, per_recurrence
