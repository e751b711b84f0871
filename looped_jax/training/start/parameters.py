"""A run that begins with the parameters of another: continued, deeper, looped, injected otherwise.

Parameters go by their names. Layers go by their place in the stack as a token first passes it:
the prelude takes the other run's first layers, the coda its last, the core those that follow the
prelude's. So a plain stack of 12 becomes 2 + 4 x r + 2 with its layers 1-2, 3-6 and 11-12, and a
looped model keeps every layer (retrofitted recurrence: arXiv:2511.07384). What has no counterpart
of its shape starts as the seed draws it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from looped_jax.config import RunConfig, resolve_json
from looped_jax.data.shards import TokenData
from looped_jax.errors import UserError
from looped_jax.files import sha256_of_file
from looped_jax.run_folder import RunFolder
from looped_jax.training import state as states
from looped_jax.training.checkpoints import restore_params

STACKS = ("prelude", "core", "coda")

Arrays = dict[str, jax.Array]
# A parameter of the other run and, if it is stacked, the layer in it; None: there is none.
Origin = tuple[str, int | None] | None


@dataclass(frozen=True)
class TakenOver:
    """What became of every parameter; "core/mlp/up/kernel[2:4]" are layers 2 and 3 of a stack.

    Attributes:
      source: the run folder.
      step: of its checkpoint.
      taken: parameters of this run with the other's numbers.
      new: those that start as the seed draws them.
      dropped: the other run's that have no place here.
    """

    source: str
    step: int
    taken: list[str]
    new: list[str]
    dropped: list[str]

    def __str__(self) -> str:
        parts = [
            f"{word}: {', '.join(names) or 'none'}"
            for word, names in (
                ("taken over", self.taken), ("new", self.new), ("dropped", self.dropped)
            )
        ]  # fmt: skip
        return f"begins with step {self.step} of {self.source}; {'; '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def begin_with(
    run: RunConfig,
    data: TokenData,
    optimizer: optax.GradientTransformationExtraArgs,
    mesh: Mesh,
) -> tuple[states.TrainState, TakenOver]:
    """The first state of a run whose `init_from` names a run folder. The mesh is active.

    Raises:
      UserError: no run or checkpoint there, or it was trained with another tokenizer.
    """
    folder = RunFolder(run.init_from)
    of_source = resolve_json(folder.read_config())
    check_same_tokenizer(folder, data, "init_from")
    restored = restore_params(
        folder.checkpoints_path,
        states.abstract_params(of_source.model, mesh),
        run.init_from_step or None,
    )
    fresh = states.init_state(run.model, optimizer, mesh, run.seed).params
    source, target = _flat(restored.state), _flat(fresh)
    origins = _origins(source, target)

    def merge(source: Arrays, fresh: Any) -> states.TrainState:
        merged = [_merged(name, leaf, origins[name], source) for name, leaf in _flat(fresh).items()]
        params = jax.tree.unflatten(jax.tree.structure(fresh), merged)
        return states.TrainState(params, optimizer.init(params))

    shardings = states.state_shardings(run.model, optimizer, mesh)
    state = jax.jit(merge, out_shardings=shardings)(source, fresh)
    return state, _named(folder, restored.step, source, target, origins)


def check_same_tokenizer(folder: RunFolder, data: TokenData, what: str) -> None:
    """Raises UserError if a run folder holds a tokenizer that is not the one of the data."""
    if not folder.tokenizer_path.exists():
        raise UserError(f"{what} = {folder.path}; allowed: a run folder with its tokenizer.json")
    if sha256_of_file(folder.tokenizer_path) != data.manifest["tokenizer"]["sha256"]:
        raise UserError(
            f"{what} = {folder.path}; allowed: a run with the tokenizer of {data.folder}, which "
            "has other tokens"
        )


def _origins(source: Arrays, target: Arrays) -> dict[str, list[Origin]]:
    """For every parameter of the target where its numbers come from; of a stacked one, by layer."""
    layers = [(stack, i) for stack in STACKS for i in range(_depth(source, stack))]
    places = _places(len(layers), {stack: _depth(target, stack) for stack in STACKS})

    def of_layer(place: int | None, inner: str, shape: tuple[int, ...]) -> Origin:
        if place is None:
            return None
        stack, i = layers[place]
        there = source.get(f"{stack}/{inner}")
        return (f"{stack}/{inner}", i) if there is not None and there.shape[1:] == shape else None

    found: dict[str, list[Origin]] = {}
    for name, leaf in target.items():
        stack, _, inner = name.partition("/")
        if stack in STACKS:
            found[name] = [of_layer(place, inner, leaf.shape[1:]) for place in places[stack]]
        else:
            fits = name in source and source[name].shape == leaf.shape
            found[name] = [(name, None) if fits else None]
    return found


def _places(total: int, wanted: dict[str, int]) -> dict[str, list[int | None]]:
    """Which of the source's `total` layers, counted through its stacks, each layer takes."""
    first, last = wanted["prelude"], wanted["coda"]
    coda_begins = max(total - last, min(first, total))
    within = lambda place, begin, end: place if begin <= place < end else None
    return {
        "prelude": [within(i, 0, total) for i in range(first)],
        "core": [within(first + i, first, coda_begins) for i in range(wanted["core"])],
        "coda": [within(total - last + i, coda_begins, total) for i in range(last)],
    }


def _merged(name: str, fresh: jax.Array, origins: Sequence[Origin], source: Arrays) -> jax.Array:
    if name.partition("/")[0] not in STACKS:
        return fresh if origins[0] is None else source[origins[0][0]]
    rows = [
        fresh[i] if origin is None else source[origin[0]][origin[1]]
        for i, origin in enumerate(origins)
    ]
    return jnp.stack(rows)


def _named(
    folder: RunFolder, step: int, source: Arrays, target: Arrays, origins: dict[str, list[Origin]]
) -> TakenOver:
    """Sorts all parameters of both runs into taken, new and dropped."""
    used = {origin for of_name in origins.values() for origin in of_name if origin is not None}
    taken: list[str] = []
    new: list[str] = []
    dropped: list[str] = []
    for name in target:
        of_name = origins[name]
        stacked = name.partition("/")[0] in STACKS
        for names, is_here in ((taken, lambda x: x is not None), (new, lambda x: x is None)):
            here = [i for i, origin in enumerate(of_name) if is_here(origin)]
            if here:
                names.append(_with_layers(name, here, len(of_name)) if stacked else name)
    for name, leaf in source.items():
        if name.partition("/")[0] in STACKS:
            left = [i for i in range(leaf.shape[0]) if (name, i) not in used]
            if left:
                dropped.append(_with_layers(name, left, leaf.shape[0]))
        elif (name, None) not in used:
            dropped.append(name)
    return TakenOver(str(folder.path), step, taken, new, dropped)


def _with_layers(name: str, layers: list[int], total: int) -> str:
    """ "core/mlp/up/kernel[2:4]" for layers 2 and 3 of more; the name alone for all."""
    if len(layers) == total:
        return name
    breaks = [k for k in range(1, len(layers)) if layers[k] != layers[k - 1] + 1]
    runs = [
        layers[begin:end] for begin, end in zip([0, *breaks], [*breaks, len(layers)], strict=True)
    ]
    return name + "".join(f"[{run[0]}:{run[-1] + 1}]" for run in runs)


def _depth(arrays: Arrays, stack: str) -> int:
    return next((x.shape[0] for name, x in arrays.items() if name.startswith(f"{stack}/")), 0)


def _flat(params: Any) -> Arrays:
    """{"core/attn/qkv/kernel": array, …} in the order of the tree's leaves."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
