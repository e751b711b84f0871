"""ModelConfig: the knobs of a looped language model, and what does not fit together.

Shape letters used throughout: B batch, T time, D width, H heads, d head_dim, A = H * d = D,
F MLP hidden, V vocabulary, L layers, R recurrences, K lanes.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

CHOICES: dict[str, tuple[str, ...]] = {
    "layer": ("pre_norm", "sandwich"),
    "mlp": ("relu2", "gated_silu"),
    "positions": ("rope_half", "rope_interleaved", "learned"),
    "injection": ("passthrough", "additive", "linear", "diagonal", "hyperconnect"),
    "injection_order": ("input_first", "state_first"),
    "initial_state": ("input", "zeros", "noise"),
    "state_norm": ("every", "last", "none"),
    "readout_norm": ("every", "last", "none"),
    "init": ("uniform_fan_in", "normal"),
    "remat": ("none", "layer", "products"),
    "attention": ("xla", "cudnn"),
    "compute_dtype": ("float32", "bfloat16"),
}


def from_tree(cls: type[T], tree: Mapping[str, Any], where: str) -> T:
    """A dataclass from a mapping with exactly its fields as keys; lists become tuples.

    Raises:
      ValueError: a key of section `where` is missing or unknown (the nearest one is named).
    """
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in tree:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; allowed: {sorted(fields)}"
            raise ValueError(f"{where}.{key} is not a config key{hint}")
    missing = sorted(fields - set(tree))
    if missing:
        raise ValueError(f"{where}.{missing[0]} is missing; required: {missing}")
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in tree.items()})


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One looped language model: prelude -> core x recurrences -> coda -> readout.

    Every field is set by the config (configs/base.py explains each one); there are no defaults
    here, so a config that misses one is an error and not a silent choice.

    Raises:
      ValueError: a value is not allowed, or two do not fit together; the message names the key,
        its value and what is allowed.
    """

    vocab_size: int
    width: int
    heads: int
    head_dim: int
    mlp_hidden: int
    prelude_layers: int
    core_layers: int
    coda_layers: int
    recurrences: int
    max_recurrences: int
    backprop_recurrences: int
    layer: str
    mlp: str
    qk_norm: bool
    qk_bias: bool
    positions: str
    rope_base: float
    max_length: int
    embedding_scale: float
    embedding_norm: bool
    injection: str
    injection_order: str
    lanes: int
    initial_state: str
    initial_state_std: float
    state_norm: str
    share_state_and_final_norm: bool
    readout_norm: str
    softcap: float
    tied_head: bool
    norm_epsilon: float
    dropout: float
    init: str
    init_std: float
    embedding_init_std: float
    head_init_std: float
    remat: str
    attention: str
    compute_dtype: str

    def __post_init__(self) -> None:
        _check_types(self)
        for key, allowed in CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"model.{key} = {getattr(self, key)!r}; allowed: {', '.join(allowed)}"
                )
        _check_ranges(self)
        _check_combinations(self)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "ModelConfig":
        """Builds the config from a mapping with exactly the fields as keys.

        Raises:
          ValueError: a key is missing or unknown (the nearest known key is named).
        """
        return from_tree(cls, tree, "model")

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
    is looped; with one recurrence nothing is shared and all layers are booked in the core.

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


def _check_types(config: ModelConfig) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        wanted = field.type if isinstance(field.type, type) else str(field.type)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(config, field.name, float(value))
        elif type(value) is not wanted:
            raise ValueError(
                f"model.{field.name} = {value!r} is a {type(value).__name__}; "
                f"allowed: {getattr(wanted, '__name__', wanted)}"
            )


def _check_ranges(config: ModelConfig) -> None:
    smallest = {
        "vocab_size": 2, "width": 1, "heads": 1, "head_dim": 1, "mlp_hidden": 1,
        "prelude_layers": 0, "core_layers": 1, "coda_layers": 0, "recurrences": 1,
        "max_recurrences": 1, "backprop_recurrences": 0, "max_length": 1, "lanes": 0,
        "softcap": 0, "dropout": 0, "initial_state_std": 0,
    }  # fmt: skip
    for key, least in smallest.items():
        if not getattr(config, key) >= least:
            raise ValueError(f"model.{key} = {getattr(config, key)}; allowed: at least {least}")
    for key in ("rope_base", "norm_epsilon", "embedding_scale"):
        if not getattr(config, key) > 0:
            raise ValueError(f"model.{key} = {getattr(config, key)}; allowed: above 0")
    if config.dropout >= 1:
        raise ValueError(f"model.dropout = {config.dropout}; allowed: 0 to below 1")


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
    if hyperconnect and c.state_norm == "last":
        raise ValueError(
            "model.state_norm = 'last'; allowed with hyperconnections: 'every' or 'none'"
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
