"""The ModelConfig of a checkpoint: what the tensors say, what a format fixes, what is stated."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from looped_jax.errors import UserError
from looped_jax.model.config import ModelConfig

# What a checkpoint says nothing about and does not change what the model computes at inference.
OF_TRAINING: dict[str, Any] = {
    "vocab_multiple": 1,
    "backprop_recurrences": 0,
    "dropout": 0.0,
    "init": "normal",
    "init_std": 0.02,
    "embedding_init_std": 0.02,
    "head_init_std": 0.0,
    "remat": "none",
    "attention": "xla",
    "compute_dtype": "float32",
}

STATED = "the caller"  # with --model=KEY=VALUE

_TYPES = {field.name: field.type for field in dataclasses.fields(ModelConfig)}


def parse_stated(texts: Sequence[str]) -> dict[str, Any]:
    """{"recurrences": 4, …} from ["recurrences=4", …].

    Raises:
      UserError: not KEY=VALUE, an unknown key, or a value of another type.
    """
    stated: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if key not in _TYPES or not equals:
            near = difflib.get_close_matches(key, _TYPES, n=1, cutoff=0.0)
            raise UserError(f"--model={text}; allowed: KEY=VALUE, such as {near[0]}=…")
        kind = _TYPES[key]
        try:
            if kind is bool:
                stated[key] = {"true": True, "false": False}[value.lower()]
            else:
                stated[key] = kind(value)  # type: ignore[operator]
        except (ValueError, KeyError):
            raise UserError(f"--model={text}; allowed: a {kind.__name__}") from None  # type: ignore
    return stated


@dataclasses.dataclass(frozen=True)
class Claim:
    """What one witness says about a model.

    Attributes:
      origin: who says so, as a message names it; STATED for the caller.
      values: keys of ModelConfig and their values.
    """

    origin: str
    values: Mapping[str, Any]


def build(format_name: str, claims: Sequence[Claim], defaults: Mapping[str, Any]) -> ModelConfig:
    """Puts a ModelConfig together.

    Args:
      claims: what the format fixes, the tensors, a config beside them and the caller say; all have
        to agree.
      defaults: what the published models have where nobody says anything.

    Raises:
      UserError: something is missing, contradicts, or does not fit together.
    """
    tree = agreed(claims)
    tree = OF_TRAINING | dict(defaults) | tree
    if "recurrences" in tree:
        tree.setdefault("max_recurrences", tree["recurrences"])
    _fill_in_heads(tree)
    if missing := [key for key in _TYPES if key not in tree]:
        raise UserError(
            f"model.{missing[0]} cannot be told from the tensors of format {format_name!r}: "
            f"state it with --model={missing[0]}=…"
        )
    try:
        return ModelConfig.from_tree(tree)
    except ValueError as error:
        raise UserError(str(error)) from error


def agreed(claims: Sequence[Claim]) -> dict[str, Any]:
    """All that is claimed. Raises UserError if two claims contradict each other."""
    found: dict[str, tuple[str, Any]] = {}
    for claim in claims:
        for key, value in claim.values.items():
            origin, before = found.setdefault(key, (claim.origin, value))
            if before != value:
                says = f"{claim.origin} says {key} = {value}"
                if claim.origin == STATED:
                    says = f"--model={key}={value} is stated"
                raise UserError(f"{says}; {origin} has {before}")
    return {key: value for key, (_, value) in found.items()}


def _fill_in_heads(tree: dict[str, Any]) -> None:
    """Fills in heads from head_dim or head_dim from heads."""
    width = tree["width"]
    for known, other in (("heads", "head_dim"), ("head_dim", "heads")):
        if known in tree and other not in tree:
            if tree[known] < 1 or width % tree[known]:
                raise UserError(
                    f"--model={known}={tree[known]}; allowed: a divisor of model.width = {width}"
                )
            tree[other] = width // tree[known]
