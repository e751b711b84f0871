"""Checkpoints of the iso-depth scaling study (arXiv:2604.21106).

To be stated: `head_dim` (or `heads`), `recurrences` (but with hyperconnections), and `injection`
("additive" or "passthrough") where no injection matrix and no lanes tell it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from looped_jax.interchange.architecture import build
from looped_jax.interchange.tensors import Tensors
from looped_jax.model.config import ModelConfig

NAME = "looped_lm_scaling"
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


def convert(tensors: Tensors, stated: Mapping[str, Any]) -> tuple[ModelConfig, dict]:
    """The model and its parameters; takes every tensor that belongs to it."""
    vocab_size, width = tensors.shape("transformer.wte.weight")
    read: dict[str, Any] = {
        "vocab_size": vocab_size,
        "width": width,
        "mlp_hidden": tensors.shape("transformer.recur.0.mlp.c_fc.weight")[0],
        "lanes": 0,
    } | {f"{ours}_layers": tensors.count(f"transformer.{name}.") for ours, name in STACKS.items()}
    if "lane_alpha" in tensors:
        recurrences, lanes = tensors.shape("lane_alpha")
        read |= {"injection": "hyperconnect", "recurrences": recurrences, "lanes": lanes}
    elif "inject.weight" in tensors:
        read["injection"] = "linear"
    elif stated.get("recurrences") == 1:
        read["injection"] = "passthrough"
    injection = read.get("injection", stated.get("injection"))
    read["initial_state"] = "zeros" if injection == "additive" else "input"
    model = build(NAME, fixed=FIXED, read=read, defaults=DEFAULTS, stated=stated)
    return model, params(tensors)


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
            "qkv": {"kernel": np.stack([take(f"attn.c_{x}").T for x in "qkv"], axis=1)},
            "out": {"kernel": take("attn.c_proj").T},
        },
        "mlp_norm": {"scale": take("n3")},
        "mlp": {"up": {"kernel": take("mlp.c_fc").T}, "down": {"kernel": take("mlp.c_proj").T}},
    }
