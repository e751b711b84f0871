"""Checkpoints of the depth-recurrent model of arXiv:2502.05171: a Hugging Face folder.

What its config.json does not say can be told from the tensors or is as in the published model;
`recurrences` (32 there) may be stated where there is no config.json, as may `rope_base`,
`embedding_scale` and `initial_state_std`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.described import Description
from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json
from looped_jax.interchange import safetensors_files
from looped_jax.interchange.architecture import STATED, Claim, agreed, build
from looped_jax.interchange.tensors import Tensors, refuse_grouped_heads, unstacked
from looped_jax.model.config import ModelConfig

NAME = "huginn"
ENTRY = None
CONFIG = "config.json"
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
# Keys of config.json that change what the model computes, and what is supported of them.
SUPPORTED = {
    "model_type": "huginn_raven",
    "architecture_class_name": "RecurrentGPT",
    "block_class_name": "SandwichBlock",
    "norm_class_name": "RMSNorm_llama",
    "mlp_class_name": "GatedMLP",
    "nonlin_name": "SiLU",
    "injection_type": "linear",
    "state_init": "like-init",
    "bias": False,
    "test_time_noise": 0,
    "rope_scaling": None,
}


def convert(tensors: Tensors, stated: Mapping[str, Any]) -> tuple[ModelConfig, dict]:
    """The model and its parameters; takes every tensor that belongs to it."""
    vocab_size, width = tensors.shape("transformer.wte.weight", 2)
    first = "transformer.core_block.0."
    read: dict[str, Any] = {
        "vocab_size": vocab_size,
        "width": width,
        "mlp_hidden": tensors.shape(f"{first}mlp.proj.weight", 2)[1],
        "qk_bias": f"{first}attn.qk_bias" in tensors,
    } | {f"{ours}_layers": tensors.count(f"transformer.{name}.") for ours, name in STACKS.items()}
    if read["qk_bias"]:
        read["heads"], read["head_dim"] = tensors.shape(f"{first}attn.qk_bias", 4)[-2:]
    tree = params(tensors)
    read["tied_head"] = "head" not in tree
    if "freqs_cis" in tensors:
        # The table of rotary angles (1, max_length, 1, head_dim / 2, 2).
        read["max_length"] = tensors.shape("freqs_cis", 5)[1]
    claims = [
        Claim(f"format {NAME!r}", FIXED),
        Claim(str(tensors.source), read),
        *describe(tensors),
    ]
    of_caller = Claim(STATED, stated)
    defaults = DEFAULTS | {"embedding_scale": width**0.5}
    recurrences = agreed([*claims, of_caller]).get("recurrences", DEFAULTS["recurrences"])
    defaults["max_recurrences"] = max(DEFAULTS["max_recurrences"], recurrences)
    model = build(NAME, [*claims, of_caller], defaults)
    if "freqs_cis" in tensors:
        _check_angles(tensors, model)
    return model, tree


def describe(tensors: Tensors) -> list[Claim]:
    """What config.json beside the tensors says, if it is there."""
    path = tensors.source.with_name(CONFIG)
    if not path.exists():
        return []
    tensors.files.append(path)
    config = Description(read_json(path), str(path))
    heads, width = config.get("n_heads", int), config.get("n_embd", int)
    config.refuse_unless(SUPPORTED | {"num_key_value_heads": heads, "num_attention_heads": heads})
    if heads < 1 or width % heads:
        raise UserError(f"{path}: n_heads = {heads}; allowed: a divisor of n_embd = {width}")
    values = {
        "vocab_size": config.get("vocab_size", int),
        "width": width,
        "heads": heads,
        "head_dim": width // heads,
        "mlp_hidden": config.get("intermediate_size", int),
        "prelude_layers": config.get("n_layers_in_prelude", int),
        "core_layers": config.get("n_layers_in_recurrent_block", int),
        "coda_layers": config.get("n_layers_in_coda", int),
        "recurrences": config.get("mean_recurrence", int),
        "qk_bias": config.get("qk_bias", bool),
        "rope_base": config.get("rope_base", float),
        "max_length": config.get("block_size", int),
        "norm_epsilon": config.get("norm_eps", float),
        "tied_head": config.get("tie_embeddings", bool),
    }
    if "init_values" in config:
        init = config.section("init_values")
        scale = init.get("embed_scale", float)
        values |= {"embedding_scale": scale, "initial_state_std": scale * init.get("std", float)}
    return [Claim(str(path), values)]


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
    rows, width = tensors.shape(f"{start}attn.Wqkv.weight", 2)
    refuse_grouped_heads(tensors, f"{start}attn.Wqkv.weight", rows, 3 * width)
    attention: dict[str, Any] = {
        "qkv": {"kernel": tensors.take_folded(f"{start}attn.Wqkv.weight", 3)},
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
            "gate_up": {"kernel": tensors.take_folded(f"{start}mlp.fc.weight", 2)},
            "down": {"kernel": take("mlp.proj.weight").T},
        },
    }


def _check_angles(tensors: Tensors, model: ModelConfig) -> None:
    """Refuses a table of rotary angles that is not the one of `rope_base`."""
    table = tensors.take("freqs_cis")
    expected = rotary_table(model)
    # bfloat16 keeps 8 bits of the cosine, and float32 angles lose digits at large places.
    if table.shape != expected.shape or np.abs(table - expected).max() > 2e-2:
        raise UserError(
            f"{tensors.source}: freqs_cis is not the table of --model=rope_base={model.rope_base:g}"
            f" for {model.max_length} places of {model.head_dim // 2} pairs"
        )


def rotary_table(model: ModelConfig) -> np.ndarray:
    """Cosines and sines as the project stores them, (1, max_length, 1, head_dim / 2, 2)."""
    half = model.head_dim // 2
    frequency = model.rope_base ** (-np.arange(half) / half)
    angle = np.arange(model.max_length)[:, None] * frequency
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)[None, :, None].astype(np.float32)


def export(
    folder: Path, model: ModelConfig, params: Any, step: int, shard_bytes: int
) -> list[Path]:
    """Writes model.safetensors (or shards and an index) and config.json; returns the former."""
    files = safetensors_files.write(folder, published(model, params), shard_bytes)
    write_json(folder / CONFIG, _config(model))
    return files


def _config(model: ModelConfig) -> dict[str, Any]:
    """What config.json of the project says of such a model."""
    scale = model.embedding_scale
    return {key: value for key, value in SUPPORTED.items() if value is not None} | {
        "architectures": ["RavenForCausalLM"],
        "n_embd": model.width,
        "n_heads": model.heads,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        "head_dim": model.head_dim,
        "n_layers": model.prelude_layers + model.core_layers + model.coda_layers,
        "n_layers_in_prelude": model.prelude_layers,
        "n_layers_in_recurrent_block": model.core_layers,
        "n_layers_in_coda": model.coda_layers,
        "mean_recurrence": model.recurrences,
        "block_size": model.max_length,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": model.vocab_size,
        "intermediate_size": model.mlp_hidden,
        "norm_eps": model.norm_epsilon,
        "qk_bias": model.qk_bias,
        "rope_base": model.rope_base,
        "tie_embeddings": model.tied_head,
        "init_values": {"embed_scale": scale, "std": model.initial_state_std / scale},
        "torch_dtype": "float32",
    }


def required(model: ModelConfig) -> dict[str, Any]:
    """What a model has to be for its files to hold it: values, or tuples to choose from."""
    return FIXED


def published(model: ModelConfig, params: Any) -> dict[str, np.ndarray]:
    """The parameters under the project's names, in its shapes."""
    tensors = {
        "transformer.wte.weight": params["embed"]["embedding"],
        "transformer.adapter.weight": params["injection"]["kernel"].T,
        "transformer.ln_f.weight": params["state_norm"]["scale"],
        "freqs_cis": rotary_table(model),
    }
    if not model.tied_head:
        tensors["lm_head.weight"] = params["head"]["kernel"].T
    fused = lambda kernel: kernel.reshape(kernel.shape[0], -1).T
    for ours, name in STACKS.items():
        for i, layer in enumerate(unstacked(params.get(ours))):
            attention, mlp = layer["attn"], layer["mlp"]
            of_layer = {
                "norm_1.weight": layer["attn_norm"]["scale"],
                "norm_2.weight": layer["attn_post_norm"]["scale"],
                "norm_3.weight": layer["mlp_norm"]["scale"],
                "norm_4.weight": layer["mlp_post_norm"]["scale"],
                "attn.Wqkv.weight": fused(attention["qkv"]["kernel"]),
                "attn.proj.weight": attention["out"]["kernel"].T,
                "mlp.fc.weight": fused(mlp["gate_up"]["kernel"]),
                "mlp.proj.weight": mlp["down"]["kernel"].T,
            }
            if model.qk_bias:
                shape = (2, 1, model.heads, model.head_dim)
                of_layer["attn.qk_bias"] = attention["qk_bias"].reshape(shape)
            tensors |= {f"transformer.{name}.{i}.{part}": array for part, array in of_layer.items()}
    return tensors
