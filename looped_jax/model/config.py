"""ModelConfig: the knobs of a looped language model, and what does not fit together.

Shape letters used throughout: B batch, T time, D width, H heads, d head_dim, A = H * d = D,
F MLP hidden, V vocabulary, L layers, R recurrences, K lanes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from looped_jax.model.fields import (
    Bounds,
    Count,
    CountOrZero,
    Positive,
    PositiveOrZero,
    from_tree,
)

CHOICES: dict[str, tuple[str, ...]] = {
    "layer": ("pre_norm", "sandwich"),
    "mlp": ("relu2", "gated_silu"),
    "positions": ("rope_half", "rope_interleaved", "learned"),
    "injection": ("passthrough", "additive", "linear", "diagonal", "hyperconnect"),
    "injection_order": ("input_first", "state_first"),
    "initial_state": ("input", "zeros", "noise"),
    "state_norm": ("every", "between", "last", "none"),
    "readout_norm": ("every", "last", "none"),
    "init": ("uniform_fan_in", "normal"),
    "remat": ("none", "layer", "products"),
    "attention": ("xla", "splash", "cudnn", "auto"),
    "compute_dtype": ("float32", "bfloat16"),
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One looped language model: prelude -> core x recurrences -> coda -> readout.

    Every field is set by the config (configs/base.py explains each one); there are no defaults
    here, so a config that misses one is an error and not a silent choice.

    Raises:
      ValueError: a value is not allowed, or two do not fit together; the message names the key,
        its value and what is allowed.
    """

    vocab_size: Annotated[int, Bounds(least=2)]
    vocab_multiple: Count
    width: Count
    heads: Count
    head_dim: Count
    mlp_hidden: Count
    prelude_layers: CountOrZero
    core_layers: Count
    coda_layers: CountOrZero
    recurrences: Count
    max_recurrences: Count
    backprop_recurrences: CountOrZero
    layer: str
    mlp: str
    qk_norm: bool
    qk_bias: bool
    positions: str
    rope_base: Positive
    max_length: Count
    embedding_scale: Positive
    embedding_norm: bool
    injection: str
    injection_order: str
    lanes: CountOrZero
    initial_state: str
    initial_state_std: PositiveOrZero
    state_norm: str
    share_state_and_final_norm: bool
    readout_norm: str
    softcap: PositiveOrZero
    tied_head: bool
    norm_epsilon: Positive
    dropout: Annotated[float, Bounds(least=0, below=1)]
    init: str
    init_std: PositiveOrZero
    embedding_init_std: PositiveOrZero
    head_init_std: PositiveOrZero
    remat: str
    attention: str
    compute_dtype: str

    def __post_init__(self) -> None:
        for key, allowed in CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"model.{key} = {getattr(self, key)!r}; allowed: {', '.join(allowed)}"
                )
        _check_combinations(self)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "ModelConfig":
        """Builds the config from a mapping with exactly the fields as keys.

        Raises:
          ValueError: a key is missing or unknown (the nearest known key is named), or its value is
            of another type or out of bounds.
        """
        return from_tree(cls, tree, "model")

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and the head: the vocabulary and what fills it up."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def attention_width(self) -> int:
        """A = heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def effective_layers(self) -> int:
        """Layers a token passes through: prelude + core * recurrences + coda."""
        return self.prelude_layers + self.core_layers * self.recurrences + self.coda_layers


def isodepth_split(effective_layers: int, ends: int, recurrences: int) -> tuple[int, int, int]:
    """Splits a fixed effective depth into (prelude, core, coda) layers for r recurrences.

    The iso-depth design (arXiv:2604.21106): `ends` layers stay unshared on each side and the rest
    is looped; with one recurrence nothing is shared and all layers are counted in the core.

    Raises:
      ValueError: the recurrences do not divide the looped depth.
    """
    looped = effective_layers - 2 * ends
    if recurrences == 1:
        return 0, effective_layers, 0
    if looped < 1 or recurrences < 1 or looped % recurrences:
        raise ValueError(
            f"recurrences = {recurrences} does not divide the looped depth {looped} "
            f"(= {effective_layers} effective layers - 2 x {ends}); "
            f"allowed: {[r for r in range(1, looped + 1) if looped % r == 0]}"
        )
    return ends, looped // recurrences, ends


def _check_combinations(config: ModelConfig) -> None:
    c = config
    if c.heads * c.head_dim != c.width:
        raise ValueError(
            f"model.heads = {c.heads} of head_dim {c.head_dim} make {c.heads * c.head_dim}; "
            f"allowed: model.width = {c.width} divided into heads without a rest"
        )
    if c.positions.startswith("rope") and c.head_dim % 2:
        raise ValueError(f"model.head_dim = {c.head_dim}; allowed with rotary positions: even")
    if c.recurrences > c.max_recurrences:
        raise ValueError(
            f"model.recurrences = {c.recurrences}; allowed: up to model.max_recurrences = "
            f"{c.max_recurrences}"
        )
    if c.backprop_recurrences > c.max_recurrences:
        raise ValueError(
            f"model.backprop_recurrences = {c.backprop_recurrences}; allowed: 0 (all) to "
            f"model.max_recurrences = {c.max_recurrences}"
        )
    hyperconnect = c.injection == "hyperconnect"
    if hyperconnect and c.lanes < 2:
        raise ValueError(f"model.lanes = {c.lanes}; allowed with hyperconnections: 2 or more lanes")
    if not hyperconnect and c.lanes:
        raise ValueError(
            f"model.lanes = {c.lanes}; allowed with injection {c.injection!r}: 0 "
            "(only hyperconnections have lanes)"
        )
    if hyperconnect and c.backprop_recurrences:
        raise ValueError(
            f"model.backprop_recurrences = {c.backprop_recurrences}; allowed with "
            "hyperconnections: 0 (every recurrence has lane parameters of its own, and those "
            "outside the window would never be trained)"
        )
    if hyperconnect and c.initial_state != "input":
        raise ValueError(
            f"model.initial_state = {c.initial_state!r}; allowed with hyperconnections: 'input' "
            "(every lane starts as the prelude's output)"
        )
    if hyperconnect and c.state_norm in ("between", "last"):
        raise ValueError(
            f"model.state_norm = {c.state_norm!r}; allowed with hyperconnections: 'every' or 'none'"
        )
    if c.injection == "passthrough" and c.initial_state != "input":
        raise ValueError(
            f"model.initial_state = {c.initial_state!r}; allowed with injection 'passthrough': "
            "'input' (the state is all that sees the tokens)"
        )
    if c.share_state_and_final_norm and "none" in (c.state_norm, c.readout_norm):
        raise ValueError(
            f"model.share_state_and_final_norm = True with state_norm {c.state_norm!r} and "
            f"readout_norm {c.readout_norm!r}; allowed: both norms present"
        )
    if c.tied_head and c.head_init_std:
        raise ValueError(
            f"model.head_init_std = {c.head_init_std}; allowed with a tied head: 0.0 "
            "(the embedding is the head)"
        )
