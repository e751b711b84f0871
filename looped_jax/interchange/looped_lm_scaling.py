"""Checkpoints of the iso-depth scaling study (arXiv:2604.21106): model_STEP.pt, meta_STEP.json.

The meta file tells all that the tensors do not. Without it these have to be stated: `head_dim` (or
`heads`; 128 to a head in the published models), `recurrences` (but with hyperconnections), and
`injection` ("additive" or "passthrough") where no injection matrix and no lanes tell it.

The tables of the published models are padded to a multiple of 64 rows; `vocab_size` cuts them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.described import Description
from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json
from looped_jax.interchange import torch_saving
from looped_jax.interchange.architecture import STATED, Claim, agreed, build
from looped_jax.interchange.tensors import Tensors, refuse_grouped_heads, unstacked
from looped_jax.model.config import ModelConfig

NAME = "looped_lm_scaling"
ENTRY = None
STACKS = {"prelude": "prelude", "core": "recur", "coda": "coda"}

FIXED = {
    "layer": "pre_norm",
    "mlp": "relu2",
    "qk_norm": True,
    "qk_bias": False,
    "positions": "rope_half",
    "embedding_scale": 1.0,
    "embedding_norm": True,
    "injection_order": "input_first",
    "initial_state_std": 0.0,
    "state_norm": "every",
    "share_state_and_final_norm": False,
    "readout_norm": "every",
    "tied_head": False,
}
DEFAULTS = {"rope_base": 10_000.0, "max_length": 2048, "softcap": 15.0, "norm_epsilon": 1e-6}
PADDED_TO = 64
PUBLISHED_HEAD_DIM = 128

INJECTIONS = {
    "inject_init_prelude": "linear",
    "additive": "additive",
    "passthrough": "passthrough",
    "hyperconnect": "hyperconnect",
}
# Keys of model_config: those below, one that follows from the width, and those of old files, which
# the project's own loader drops.
KEYS = (
    "sequence_len", "vocab_size", "n_head", "n_kv_head", "n_embd", "n_prelude", "n_recur_block",
    "n_coda", "num_recur", "bptt_k", "input_injection", "num_lanes", "logit_softcap", "size",
    "train_recur_mean", "train_recur_max", "recur_warm_start", "sandwich_norm",
)  # fmt: skip


def convert(tensors: Tensors, stated: Mapping[str, Any]) -> tuple[ModelConfig, dict]:
    """The model and its parameters; takes every tensor that belongs to it."""
    rows, width = tensors.shape("transformer.wte.weight", 2)
    described, of_caller = describe(tensors), Claim(STATED, stated)
    claims = [
        Claim(f"format {NAME!r}", FIXED),
        Claim(str(tensors.source), _read(tensors, width)),
        *described,
    ]
    said = agreed([*claims, of_caller])
    if said.get("recurrences") == 1:
        said.setdefault("injection", "passthrough")
    follows = {"vocab_size": said.get("vocab_size", rows)}
    if not 2 <= follows["vocab_size"] <= rows:
        raise UserError(
            f"model.vocab_size = {follows['vocab_size']}; allowed for {tensors.source}: 2 to "
            f"{rows}, the rows of its tables"
        )
    if "injection" in said:
        follows["injection"] = said["injection"]
        follows["initial_state"] = "zeros" if said["injection"] == "additive" else "input"
    claims.append(Claim(f"a model of {NAME!r} with these", follows))
    model = build(NAME, [*claims, of_caller], DEFAULTS)
    if "vocab_size" not in said and rows % PADDED_TO == 0:
        tensors.notes.append(
            f"vocab_size = {rows}, all rows of the tables: state --model=vocab_size=… if the last "
            "ones are padding"
        )
    if not described:
        tensors.notes.append(
            f"head_dim = {model.head_dim} is as stated, no file confirms it: the published models "
            f"have {PUBLISHED_HEAD_DIM}"
        )
    tree = params(tensors)
    tree["embed"]["embedding"] = tree["embed"]["embedding"][: model.vocab_size]
    if tree["head"]["kernel"].shape[1] == rows:  # any other head is of another model
        tree["head"]["kernel"] = tree["head"]["kernel"][:, : model.vocab_size]
    return model, tree


def _read(tensors: Tensors, width: int) -> dict[str, Any]:
    """What the tensors say of the model. Raises UserError for grouped heads."""
    read: dict[str, Any] = {
        "width": width,
        "mlp_hidden": tensors.shape("transformer.recur.0.mlp.c_fc.weight", 2)[0],
        "lanes": 0,
    } | {f"{ours}_layers": tensors.count(f"transformer.{name}.") for ours, name in STACKS.items()}
    for name in ("transformer.recur.0.attn.c_k.weight", "transformer.recur.0.attn.c_v.weight"):
        refuse_grouped_heads(tensors, name, tensors.shape(name, 2)[0], width)
    if "lane_alpha" in tensors:
        recurrences, lanes = tensors.shape("lane_alpha", 2)
        read |= {"injection": "hyperconnect", "recurrences": recurrences, "lanes": lanes}
    elif "inject.weight" in tensors:
        read["injection"] = "linear"
    return read


def describe(tensors: Tensors) -> list[Claim]:
    """What meta_STEP.json beside model_STEP.pt says, if it is there."""
    step = re.fullmatch(r"model_(.+)\.[a-z]+", tensors.source.name)
    path = tensors.source.with_name(f"meta_{step[1]}.json") if step else None
    if path is None or not path.exists():
        return []
    tensors.files.append(path)
    config = Description(read_json(path), str(path)).section("model_config")
    config.refuse_unknown(KEYS)
    width, heads = config.get("n_embd", int), config.get("n_head", int)
    if heads < 1 or width % heads:
        raise UserError(f"{config.name}: n_head = {heads}; allowed: a divisor of n_embd = {width}")
    config.refuse_unless({"n_kv_head": heads, "sandwich_norm": False})
    injection = config.get("input_injection", str, "inject_init_prelude")
    if injection not in INJECTIONS:
        raise UserError(
            f"{config.name}: input_injection = {injection!r}; allowed: {', '.join(INJECTIONS)}"
        )
    recurrences = config.get("num_recur" if "num_recur" in config else "train_recur_mean", int)
    lanes = config.get("num_lanes", int, 2) if injection == "hyperconnect" else 0
    window = config.table.get("bptt_k")
    is_truncated = type(window) is int and 0 < window < recurrences
    values = {
        "vocab_size": config.get("vocab_size", int),
        "width": width,
        "heads": heads,
        "head_dim": width // heads,
        "prelude_layers": config.get("n_prelude", int),
        "core_layers": config.get("n_recur_block", int),
        "coda_layers": config.get("n_coda", int),
        "recurrences": recurrences,
        "backprop_recurrences": window if is_truncated else 0,
        "injection": INJECTIONS[injection],
        "lanes": lanes,
        "max_length": config.get("sequence_len", int),
        "softcap": config.get("logit_softcap", float, DEFAULTS["softcap"]),
    }
    return [Claim(str(path), values)]


def params(tensors: Tensors) -> dict:
    """The parameter tree: layers stacked, kernels (in, out), q, k and v joined."""
    tree = {
        "embed": {"embedding": tensors.take("transformer.wte.weight")},
        "embed_norm": {"scale": tensors.take("norm_emb.weight")},
        "state_norm": {"scale": tensors.take("norm_recur.weight")},
        "final_norm": {"scale": tensors.take("norm_final.weight")},
        "head": {"kernel": tensors.take("lm_head.weight").T},
    }
    for ours, name in STACKS.items():
        if tensors.count(f"transformer.{name}."):
            tree[ours] = tensors.layers(
                f"transformer.{name}.", lambda start: _layer(tensors, start)
            )
    if "inject.weight" in tensors:
        tree["injection"] = {"kernel": tensors.take("inject.weight").T}
    if "lane_alpha" in tensors:
        tree["lanes"] = {name: tensors.take(f"lane_{name}") for name in ("alpha", "mixing", "beta")}
    return tree


def _layer(tensors: Tensors, start: str) -> dict:
    take = lambda name: tensors.take(f"{start}{name}.weight")
    return {
        "attn_norm": {"scale": take("n1")},
        "attn": {
            "qkv": {"kernel": tensors.take_joined(*(f"{start}attn.c_{x}.weight" for x in "qkv"))},
            "out": {"kernel": take("attn.c_proj").T},
        },
        "mlp_norm": {"scale": take("n3")},
        "mlp": {"up": {"kernel": take("mlp.c_fc").T}, "down": {"kernel": take("mlp.c_proj").T}},
    }


def export(
    folder: Path, model: ModelConfig, params: Any, step: int, shard_bytes: int
) -> list[Path]:
    """Writes model_STEP.pt, its tables padded as the project pads them, and meta_STEP.json.

    Returns the file with tensors (there is one, whatever `shard_bytes`).
    """
    path = folder / f"model_{step:06d}.pt"
    torch_saving.save(path, published(model, params))
    names = {ours: theirs for theirs, ours in INJECTIONS.items()}
    config = {
        "sequence_len": model.max_length,
        "vocab_size": model.vocab_size,
        "size": model.width // 64,
        "n_head": model.heads,
        "n_kv_head": model.heads,
        "n_embd": model.width,
        "n_prelude": model.prelude_layers,
        "n_recur_block": model.core_layers,
        "n_coda": model.coda_layers,
        "num_recur": model.recurrences,
        "bptt_k": model.backprop_recurrences or model.recurrences,
        "input_injection": names[model.injection],
        "num_lanes": model.lanes or 2,
        "logit_softcap": model.softcap,
    }
    write_json(folder / f"meta_{step:06d}.json", {"step": step, "model_config": config})
    return [path]


def required(model: ModelConfig) -> dict[str, Any]:
    """What a model has to be for its files to hold it: values, or tuples to choose from."""
    fixed = {key: DEFAULTS[key] for key in ("rope_base", "norm_epsilon")}
    return (
        FIXED
        | fixed
        | {
            "mlp_hidden": 4 * model.width,
            "injection": tuple(INJECTIONS.values()),
            "initial_state": "zeros" if model.injection == "additive" else "input",
        }
    )


def published(model: ModelConfig, params: Any) -> dict[str, np.ndarray]:
    """The parameters under the project's names, in its shapes."""
    padding = ((0, -model.vocab_size % PADDED_TO), (0, 0))
    tensors = {
        "transformer.wte.weight": np.pad(params["embed"]["embedding"], padding),
        "norm_emb.weight": params["embed_norm"]["scale"],
        "norm_recur.weight": params["state_norm"]["scale"],
        "norm_final.weight": params["final_norm"]["scale"],
        "lm_head.weight": np.pad(params["head"]["kernel"].T, padding),
    }
    for ours, name in STACKS.items():
        for i, layer in enumerate(unstacked(params.get(ours))):
            attention, mlp = layer["attn"], layer["mlp"]
            of_layer = {
                "n1": layer["attn_norm"]["scale"],
                "n3": layer["mlp_norm"]["scale"],
                "attn.c_proj": attention["out"]["kernel"].T,
                "mlp.c_fc": mlp["up"]["kernel"].T,
                "mlp.c_proj": mlp["down"]["kernel"].T,
            } | {f"attn.c_{x}": attention["qkv"]["kernel"][:, j].T for j, x in enumerate("qkv")}
            tensors |= {
                f"transformer.{name}.{i}.{part}.weight": array for part, array in of_layer.items()
            }
    if model.injection == "linear":
        tensors["inject.weight"] = params["injection"]["kernel"].T
    if model.injection == "hyperconnect":
        tensors |= {f"lane_{name}": table for name, table in params["lanes"].items()}
    return tensors
