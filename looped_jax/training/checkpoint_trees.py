"""The state of a run as orbax items: named arrays in nested dicts, and back.

A name is what stands on the path to an array: dict key, attribute, position in a tuple. It says the
same to every reader, whichever classes the state was made of.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from looped_jax.errors import UserError

# Key in the item (names joined by "/") → {"shape": [...], "dtype": ...}.
Arrays = dict[str, dict[str, Any]]

_MAX_KEYS_NAMED = 5


def split(state: Any) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Splits a state (of arrays or of shapes) into the items `params` and `rest`.

    Returns:
      The items as nested dicts, and their arrays' shapes and dtypes.
    """
    trees: dict[str, Any] = {}
    arrays: dict[str, Arrays] = {}
    for names, leaf in _named_leaves(state):
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise TypeError(f"state entry {'/'.join(names)} is no array: {leaf!r}")
        item, *inner = _item_path(names)
        if not inner:
            raise ValueError("the state's entry 'params' is one array, not a tree of them")
        branch = trees.setdefault(item, {})
        for name in inner[:-1]:
            branch = branch.setdefault(name, {})
        branch[inner[-1]] = leaf
        described = {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
        arrays.setdefault(item, {})["/".join(inner)] = described
    if "params" not in trees:
        raise ValueError("the state has no entry 'params' that holds arrays")
    return trees, arrays


def join(trees: Mapping[str, Any], like: Any) -> Any:
    """Undoes `split`: the arrays of the items in the structure of `like`."""
    leaves = dict(_named_leaves(trees))
    order = [leaves[_item_path(names)] for names, _ in _named_leaves(like)]
    return jax.tree.unflatten(jax.tree.structure(like), order)


def refuse_misfit(path: Path, saved: Mapping[str, Arrays], wanted: Mapping[str, Arrays]) -> None:
    """Raises UserError if the checkpoint at `path` holds other arrays than wanted; names them."""
    misfits = []
    for item, want in wanted.items():
        have = saved.get(item, {})
        misfits += [f"{item}/{key} is missing" for key in want if key not in have]
        misfits += [f"{item}/{key} is not asked for" for key in have if key not in want]
        for key in [key for key in want if key in have]:
            misfits += [
                f"{item}/{key} has {kind} {have[key][kind]} instead of {want[key][kind]}"
                for kind in ("shape", "dtype")
                if have[key][kind] != want[key][kind]
            ]
    if len(misfits) > _MAX_KEYS_NAMED:
        misfits[_MAX_KEYS_NAMED:] = [f"and {len(misfits) - _MAX_KEYS_NAMED} more"]
    if misfits:
        raise UserError(f"checkpoint {path} does not fit this configuration: {', '.join(misfits)}")


def refuse_not_finite(path: Path, params: Any) -> None:
    """Raises UserError if a parameter holds NaN or infinity; on all processes of a run alike."""
    counts = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.sum(~jnp.isfinite(x)), tree))(params)
    bad = [("/".join(names), int(n)) for names, n in _named_leaves(counts) if n > 0]
    if bad:
        named = [f"{name} ({n})" for name, n in bad]
        if len(named) > _MAX_KEYS_NAMED:
            named[_MAX_KEYS_NAMED:] = [f"and {len(named) - _MAX_KEYS_NAMED} more"]
        raise UserError(
            f"checkpoint {path} holds numbers that are not finite: {', '.join(named)}; "
            "allowed: finite parameters"
        )


def _item_path(names: tuple[str, ...]) -> tuple[str, ...]:
    return names if names[:1] == ("params",) else ("rest", *names)


def _named_leaves(tree: Any) -> list[tuple[tuple[str, ...], Any]]:
    return [
        (tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
