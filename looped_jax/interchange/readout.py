"""Checkpoints of the readout study (arXiv:2606.24898).

To be stated: `heads` (or `head_dim`) and `recurrences`; `readout_norm=last` for a model whose loops
but the last were read without a norm.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from looped_jax.errors import UserError
from looped_jax.interchange.architecture import build
from looped_jax.interchange.tensors import Tensors
from looped_jax.model.config import ModelConfig

NAME = "readout"

FIXED = {
    "prelude_layers": 0,
    "coda_layers": 0,
    "layer": "pre_norm",
    "mlp": "gated_silu",
    "qk_norm": False,
    "qk_bias": False,
    "positions": "learned",
    "rope_base": 10_000.0,
    "embedding_scale": 1.0,
    "embedding_norm": False,
    "injection": "passthrough",
    "injection_order": "input_first",
    "lanes": 0,
    "initial_state": "input",
    "initial_state_std": 0.0,
    "state_norm": "none",
    "share_state_and_final_norm": False,
    "softcap": 0.0,
    "tied_head": True,
}
DEFAULTS = {"norm_epsilon": 1e-6}
NORM = "decode_norm.weight"


def convert(tensors: Tensors, stated: Mapping[str, Any]) -> tuple[ModelConfig, dict]:
    """The model and its parameters; takes every tensor that belongs to it."""
    vocab_size, width = tensors.shape("token_embedding.weight")
    read = {
        "vocab_size": vocab_size,
        "width": width,
        "max_length": tensors.shape("position_embedding.weight")[0],
        "core_layers": tensors.count("layers."),
        "mlp_hidden": tensors.shape("layers.0.ffn.w1.weight")[0],
    }
    wanted = stated.get("readout_norm", "every" if NORM in tensors else "none")
    if (wanted != "none") != (NORM in tensors):
        raise UserError(
            f"--model=readout_norm={wanted}; allowed for {tensors.source}, which has "
            f"{'a' if NORM in tensors else 'no'} tensor {NORM}: "
            f"{'every or last' if NORM in tensors else 'none'}"
        )
    read["readout_norm"] = wanted
    model = build(NAME, fixed=FIXED, read=read, defaults=DEFAULTS, stated=stated)
    return model, params(tensors)


def params(tensors: Tensors) -> dict:
    """The parameter tree: layers stacked, kernels (in, out); w1 is the gate and w3 the up half."""
    tree = {
        "embed": {"embedding": tensors.take("token_embedding.weight")},
        "positions": {"embedding": tensors.take("position_embedding.weight")},
        "core": tensors.layers("layers.", lambda start: _layer(tensors, start)),
    }
    if NORM in tensors:
        tree["final_norm"] = {"scale": tensors.take(NORM)}
    return tree


def _layer(tensors: Tensors, start: str) -> dict:
    take = lambda name: tensors.take(f"{start}{name}.weight")
    qkv = take("attn.qkv").T
    return {
        "attn_norm": {"scale": take("attn_norm")},
        "mlp_norm": {"scale": take("ffn_norm")},
        "attn": {
            "qkv": {"kernel": qkv.reshape(qkv.shape[0], 3, -1)},
            "out": {"kernel": take("attn.out_proj").T},
        },
        "mlp": {
            "gate_up": {"kernel": np.stack([take("ffn.w1").T, take("ffn.w3").T], axis=1)},
            "down": {"kernel": take("ffn.w2").T},
        },
    }
