"""Checkpoints of the depth-recurrent model of arXiv:2502.05171.

All can be told from the tensors or is as in the published model; `recurrences` (32 there) may be
stated, as may `rope_base`, `embedding_scale` and `initial_state_std`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from looped_jax.errors import UserError
from looped_jax.interchange.architecture import build
from looped_jax.interchange.tensors import Tensors
from looped_jax.model.config import ModelConfig

NAME = "huginn"
STACKS = {"prelude": "prelude", "core": "core_block", "coda": "coda"}

FIXED = {
    "layer": "sandwich",
    "mlp": "gated_silu",
    "qk_norm": False,
    "positions": "rope_interleaved",
    "embedding_norm": False,
    "injection": "linear",
    "injection_order": "state_first",
    "lanes": 0,
    "initial_state": "noise",
    "state_norm": "last",
    "share_state_and_final_norm": True,
    "readout_norm": "every",
    "softcap": 0.0,
}
DEFAULTS = {
    "recurrences": 32,
    "max_recurrences": 128,
    "rope_base": 50_000.0,
    "max_length": 4096,
    "norm_epsilon": 1e-6,
    # The embedding's scale √D times weights of variance 2 / (5 D).
    "initial_state_std": (2 / 5) ** 0.5,
}


def convert(tensors: Tensors, stated: Mapping[str, Any]) -> tuple[ModelConfig, dict]:
    """The model and its parameters; takes every tensor that belongs to it."""
    vocab_size, width = tensors.shape("transformer.wte.weight")
    first = "transformer.core_block.0."
    read: dict[str, Any] = {
        "vocab_size": vocab_size,
        "width": width,
        "mlp_hidden": tensors.shape(f"{first}mlp.proj.weight")[1],
        "qk_bias": f"{first}attn.qk_bias" in tensors,
    } | {f"{ours}_layers": tensors.count(f"transformer.{name}.") for ours, name in STACKS.items()}
    if read["qk_bias"]:
        read["heads"], read["head_dim"] = tensors.shape(f"{first}attn.qk_bias")[-2:]
    tree = params(tensors)
    read["tied_head"] = "head" not in tree
    defaults = DEFAULTS | {"embedding_scale": width**0.5}
    if "recurrences" in stated:
        most = max(DEFAULTS["max_recurrences"], stated["recurrences"])
        defaults["max_recurrences"] = most
    if "freqs_cis" in tensors:
        # The table of rotary angles (1, max_length, 1, head_dim / 2, 2).
        read["max_length"] = tensors.shape("freqs_cis")[1]
    model = build(NAME, fixed=FIXED, read=read, defaults=defaults, stated=stated)
    if "freqs_cis" in tensors:
        _check_angles(tensors, model)
    return model, tree


def params(tensors: Tensors) -> dict:
    """The parameter tree: layers stacked, kernels (in, out), fused maps unfolded."""
    tree = {
        "embed": {"embedding": tensors.take("transformer.wte.weight")},
        "injection": {"kernel": tensors.take("transformer.adapter.weight").T},
        "state_norm": {"scale": tensors.take("transformer.ln_f.weight")},
    }
    for ours, name in STACKS.items():
        if tensors.count(f"transformer.{name}."):
            tree[ours] = tensors.layers(
                f"transformer.{name}.", lambda start: _layer(tensors, start)
            )
    if "lm_head.weight" in tensors:  # written by some savers although it is the embedding
        head = tensors.take("lm_head.weight")
        if not np.array_equal(head, tree["embed"]["embedding"]):
            tree["head"] = {"kernel": head.T}
    return tree


def _layer(tensors: Tensors, start: str) -> dict:
    take = lambda name: tensors.take(start + name)
    width = tensors.shape(f"{start}attn.proj.weight")[0]
    attention: dict[str, Any] = {
        "qkv": {"kernel": take("attn.Wqkv.weight").T.reshape(width, 3, -1)},
        "out": {"kernel": take("attn.proj.weight").T},
    }
    if f"{start}attn.qk_bias" in tensors:
        attention["qk_bias"] = take("attn.qk_bias").reshape(2, -1)
    return {
        "attn_norm": {"scale": take("norm_1.weight")},
        "attn_post_norm": {"scale": take("norm_2.weight")},
        "mlp_norm": {"scale": take("norm_3.weight")},
        "mlp_post_norm": {"scale": take("norm_4.weight")},
        "attn": attention,
        "mlp": {
            "gate_up": {"kernel": take("mlp.fc.weight").T.reshape(width, 2, -1)},
            "down": {"kernel": take("mlp.proj.weight").T},
        },
    }


def _check_angles(tensors: Tensors, model: ModelConfig) -> None:
    """Refuses a table of rotary angles that is not the one of `rope_base`."""
    table = tensors.take("freqs_cis")
    half = model.head_dim // 2
    frequency = model.rope_base ** (-np.arange(half) / half)
    angle = np.arange(model.max_length)[:, None] * frequency
    expected = np.stack([np.cos(angle), np.sin(angle)], axis=-1)[None, :, None]
    # bfloat16 keeps 8 bits of the cosine, and float32 angles lose digits at large places.
    if table.shape != expected.shape or np.abs(table - expected).max() > 2e-2:
        raise UserError(
            f"{tensors.source}: freqs_cis is not the table of --model=rope_base={model.rope_base:g}"
            f" for {model.max_length} places of {half} pairs"
        )
