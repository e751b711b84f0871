"""Checkpoints of the readout study (arXiv:2606.24898): last.pt with entries model_state, config.

The file's config tells all that the tensors do not. For tensors alone these have to be stated:
`heads` (or `head_dim`) and `recurrences`; `readout_norm=last` for a model whose loops but the last
were read without a norm; and `state_norm` where a trained `loop_norm.weight` leaves it open.

Every file of the project also holds parameters that no logit depends on; see `_drop_inactive`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.described import Description
from looped_jax.errors import UserError
from looped_jax.interchange import torch_saving
from looped_jax.interchange.architecture import STATED, Claim, agreed, build
from looped_jax.interchange.tensors import Tensors, refuse_grouped_heads, unstacked
from looped_jax.model.config import ModelConfig

NAME = "readout"
ENTRY = "model_state"

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
    "share_state_and_final_norm": False,
    "softcap": 0.0,
}
DEFAULTS = {"norm_epsilon": 1e-6}
NORM = "decode_norm.weight"
HEAD, LOOP_NORM = "lm_head.weight", "loop_norm.weight"
DAMPING = "raw_alpha"  # what the project's damping of the state, if on, is the sigmoid of
INITIAL_DAMPING = 2.0
# Keys of the config's table "model" that change what is computed, and what is supported of them.
SUPPORTED = {
    "block_norm_type": "rmsnorm",
    "loop_norm_type": "rmsnorm",
    "decode_norm_type": "rmsnorm",
    "use_spectral_damping": False,
}


def convert(tensors: Tensors, stated: Mapping[str, Any]) -> tuple[ModelConfig, dict]:
    """The model and its parameters; takes every tensor that belongs to it."""
    vocab_size, width = tensors.shape("token_embedding.weight", 2)
    read: dict[str, Any] = {
        "vocab_size": vocab_size,
        "width": width,
        "max_length": tensors.shape("position_embedding.weight", 2)[0],
        "core_layers": tensors.count("layers."),
        "mlp_hidden": tensors.shape("layers.0.ffn.w1.weight", 2)[0],
    }
    described = describe(tensors)
    claims = [
        Claim(f"format {NAME!r}", FIXED),
        Claim(str(tensors.source), read),
        *described,
    ]
    of_caller = Claim(STATED, stated)
    said = agreed([*claims, of_caller])
    wanted = said.get("readout_norm", "every" if NORM in tensors else "none")
    if (wanted != "none") != (NORM in tensors):
        raise UserError(
            f"readout_norm={wanted}; allowed for {tensors.source}, which has "
            f"{'a' if NORM in tensors else 'no'} tensor {NORM}: "
            f"{'every or last' if NORM in tensors else 'none'}"
        )
    state_norm = said.get("state_norm") or _state_norm(tensors)
    _drop_inactive(tensors, width, state_norm, is_described=bool(described))
    if said.get("tied_head", True) and _is_tied(tensors):
        tensors.drop(HEAD, tensors.shape(HEAD))
    tree = params(tensors)
    follows = {
        "readout_norm": wanted, "state_norm": state_norm, "tied_head": "head" not in tree,
    }  # fmt: skip
    claims.append(Claim(str(tensors.source), follows))
    return build(NAME, [*claims, of_caller], DEFAULTS), tree


def describe(tensors: Tensors) -> list[Claim]:
    """What the config in the file says, if there is one."""
    if "config" not in tensors.beside:
        return []
    config = Description(tensors.beside["config"], f"{tensors.source}: config")
    model, data = config.section("model"), config.section("data")
    model.refuse_unless(SUPPORTED)
    width = model.get("d_model", int)
    readout_norm = "last" if model.get("decode_norm_final_only", bool, False) else "every"
    values = {
        "width": width,
        "heads": model.get("num_heads", int),
        "core_layers": model.get("num_layers", int),
        "mlp_hidden": width * model.get("ff_multiplier", int),
        "recurrences": model.get("num_loops", int),
        "max_length": data.get("seq_len", int),
        "dropout": model.get("dropout", float, 0.1),
        "readout_norm": readout_norm if model.get("use_decode_norm", bool, True) else "none",
        "state_norm": "between" if model.get("inter_loop_norm", bool, True) else "none",
        "tied_head": model.get("tie_weights", bool, True),
    }
    return [Claim(config.name, values)]


def _state_norm(tensors: Tensors) -> str:
    """Whether there is a norm between the loops, where nobody says so.

    A scale that was never used is still 1 everywhere.
    """
    if LOOP_NORM not in tensors or (tensors.peek(LOOP_NORM) == 1).all():
        return "none"
    raise UserError(
        f"{tensors.source}: {LOOP_NORM} is trained, so there may be a norm between the loops: "
        "state it with --model=state_norm=between, or none"
    )


def _drop_inactive(tensors: Tensors, width: int, state_norm: str, *, is_described: bool) -> None:
    """Checks and leaves out what the published model has and does not use.

    A gate for exits, which is read beside the logits; the damping of the state, at its initial
    value; and the scale of a norm between loops that is off.
    """
    if DAMPING in tensors:
        alpha = tensors.drop(DAMPING, ())
        if not is_described and alpha != INITIAL_DAMPING:
            raise UserError(
                f"{tensors.source}: {DAMPING} = {alpha:g} is trained, so the state may be damped "
                f"between the loops; allowed: {INITIAL_DAMPING:g}, or a file with its config"
            )
    for name, shape in (("exit_gate.weight", (1, width)), ("exit_gate.bias", (1,))):
        if name in tensors:
            tensors.drop(name, shape)
    if state_norm == "none" and LOOP_NORM in tensors:
        tensors.drop(LOOP_NORM, (width,))


def _is_tied(tensors: Tensors) -> bool:
    """Whether the head is there and is the embedding."""
    if HEAD not in tensors:
        return False
    return np.array_equal(tensors.peek(HEAD), tensors.peek("token_embedding.weight"))


def params(tensors: Tensors) -> dict:
    """The parameter tree: layers stacked, kernels (in, out); w1 is the gate and w3 the up half."""
    tree = {
        "embed": {"embedding": tensors.take("token_embedding.weight")},
        "positions": {"embedding": tensors.take("position_embedding.weight")},
        "core": tensors.layers("layers.", lambda start: _layer(tensors, start)),
    }
    if NORM in tensors:
        tree["final_norm"] = {"scale": tensors.take(NORM)}
    if LOOP_NORM in tensors:
        tree["state_norm"] = {"scale": tensors.take(LOOP_NORM)}
    if HEAD in tensors:
        tree["head"] = {"kernel": tensors.take(HEAD).T}
    return tree


def _layer(tensors: Tensors, start: str) -> dict:
    take = lambda name: tensors.take(f"{start}{name}.weight")
    rows, width = tensors.shape(f"{start}attn.qkv.weight", 2)
    refuse_grouped_heads(tensors, f"{start}attn.qkv.weight", rows, 3 * width)
    return {
        "attn_norm": {"scale": take("attn_norm")},
        "mlp_norm": {"scale": take("ffn_norm")},
        "attn": {
            "qkv": {"kernel": tensors.take_folded(f"{start}attn.qkv.weight", 3)},
            "out": {"kernel": take("attn.out_proj").T},
        },
        "mlp": {
            "gate_up": {
                "kernel": tensors.take_joined(*(f"{start}ffn.{w}.weight" for w in ("w1", "w3")))
            },
            "down": {"kernel": take("ffn.w2").T},
        },
    }


def export(
    folder: Path, model: ModelConfig, params: Any, step: int, shard_bytes: int
) -> list[Path]:
    """Writes last.pt: the state dict, the config that its loader reads, and the step.

    Returns the file (there is one, whatever `shard_bytes`).
    """
    path = folder / "last.pt"
    config = {
        "data": {"seq_len": model.max_length},
        "model": SUPPORTED
        | {
            "d_model": model.width,
            "num_heads": model.heads,
            "num_layers": model.core_layers,
            "ff_multiplier": model.mlp_hidden // model.width,
            "dropout": model.dropout,
            "num_loops": model.recurrences,
            "inter_loop_norm": model.state_norm == "between",
            "use_decode_norm": model.readout_norm != "none",
            "decode_norm_final_only": model.readout_norm == "last",
            "tie_weights": model.tied_head,
        },
    }
    content = {"model_state": published(model, params), "config": config, "global_step": step}
    torch_saving.save(path, content)
    return [path]


def required(model: ModelConfig) -> dict[str, Any]:
    """What a model has to be for its files to hold it: values, or tuples to choose from."""
    multiple = max(1, model.mlp_hidden // model.width)
    hidden = {"mlp_hidden": multiple * model.width, "state_norm": ("none", "between")}
    return FIXED | DEFAULTS | hidden


def published(model: ModelConfig, params: Any) -> dict[str, np.ndarray]:
    """The parameters under the project's names and shapes, and those it has and does not use."""
    embedding = params["embed"]["embedding"]
    tensors = {
        DAMPING: np.array(INITIAL_DAMPING, np.float32),
        "token_embedding.weight": embedding,
        "position_embedding.weight": params["positions"]["embedding"],
        LOOP_NORM: np.ones(model.width, np.float32),
        "exit_gate.weight": np.zeros((1, model.width), np.float32),
        "exit_gate.bias": np.zeros(1, np.float32),
        HEAD: embedding if model.tied_head else params["head"]["kernel"].T,
    }
    if model.state_norm == "between":
        tensors[LOOP_NORM] = params["state_norm"]["scale"]
    if model.readout_norm != "none":
        tensors[NORM] = params["final_norm"]["scale"]
    for i, layer in enumerate(unstacked(params["core"])):
        qkv, gate_up = layer["attn"]["qkv"]["kernel"], layer["mlp"]["gate_up"]["kernel"]
        of_layer = {
            "attn_norm": layer["attn_norm"]["scale"],
            "ffn_norm": layer["mlp_norm"]["scale"],
            "attn.qkv": qkv.reshape(model.width, -1).T,
            "attn.out_proj": layer["attn"]["out"]["kernel"].T,
            "ffn.w1": gate_up[:, 0].T,
            "ffn.w3": gate_up[:, 1].T,
            "ffn.w2": layer["mlp"]["down"]["kernel"].T,
        }
        tensors |= {f"layers.{i}.{part}.weight": array for part, array in of_layer.items()}
    return tensors
