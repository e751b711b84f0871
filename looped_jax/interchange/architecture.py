"""The ModelConfig of a checkpoint: what the tensors say, what a format fixes, what is stated."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from looped_jax.errors import UserError
from looped_jax.model.config import ModelConfig

# What a checkpoint says nothing about and does not change what the model computes at inference.
OF_TRAINING: dict[str, Any] = {
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


def build(
    format_name: str,
    *,
    fixed: Mapping[str, Any],
    read: Mapping[str, Any],
    defaults: Mapping[str, Any],
    stated: Mapping[str, Any],
) -> ModelConfig:
    """Puts a ModelConfig together.

    Args:
      fixed: what every model of the format has.
      read: what the tensors say; a statement has to agree with it.
      defaults: what they do not say and the published models have; statements go before.

    Raises:
      UserError: something is missing, contradicts, or does not fit together.
    """
    certain = dict(fixed) | dict(read)
    for key, value in stated.items():
        if key in certain and certain[key] != value:
            raise UserError(
                f"--model={key}={value} is stated; a checkpoint of format {format_name!r} with "
                f"these tensors has {certain[key]}"
            )
    tree = OF_TRAINING | dict(defaults) | certain | dict(stated)
    if "recurrences" in tree:
        tree.setdefault("max_recurrences", tree["recurrences"])
    heads_of(tree, format_name)
    if missing := [key for key in _TYPES if key not in tree]:
        raise UserError(
            f"model.{missing[0]} cannot be told from the tensors of format {format_name!r}: "
            f"state it with --model={missing[0]}=…"
        )
    try:
        return ModelConfig.from_tree(tree)
    except ValueError as error:
        raise UserError(str(error)) from error


def heads_of(tree: dict[str, Any], format_name: str) -> None:
    """Fills in heads from head_dim or head_dim from heads."""
    width = tree["width"]
    for known, other in (("heads", "head_dim"), ("head_dim", "heads")):
        if known in tree and other not in tree:
            if tree[known] < 1 or width % tree[known]:
                raise UserError(
                    f"--model={known}={tree[known]}; allowed: a divisor of model.width = {width}"
                )
            tree[other] = width // tree[known]
