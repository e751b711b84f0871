"""The golden weights as the published projects keep them: what is beside, in and around a file."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.interchange import torch_zip

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """All arrays of a golden file, and its weights under their published names."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        arrays = dict(arrays)
    weights = {
        key.removeprefix("param/"): np.ascontiguousarray(value)
        for key, value in arrays.items()
        if key.startswith("param/")
    }
    return arrays, weights


def isodepth(folder: Path, rows: int = 64, **changes) -> Path:
    """The linear model: model_000120.pt with padded tables, meta_000120.json, an optimiser file.

    `changes` go into model_config; None takes a key out.
    """
    _, weights = golden("isodepth_linear")
    filler = np.random.default_rng(0).standard_normal((rows - 40, 32)).astype(np.float32)
    for name in ("transformer.wte.weight", "lm_head.weight"):
        weights[name] = np.concatenate([weights[name], filler])
    folder.mkdir(exist_ok=True)
    torch_zip.save(torch_zip.state_dict(weights), folder / "model_000120.pt")
    (folder / "model_final.pt").unlink(missing_ok=True)
    (folder / "model_final.pt").symlink_to("model_000120.pt")
    moments = {"state": {0: {"exp_avg": filler}}, "param_groups": [{"lr": 0.1}]}
    torch_zip.save(moments, folder / "optim_000120_rank0.pt")
    config = {
        "sequence_len": 16, "vocab_size": 40, "size": 20, "n_head": 2, "n_kv_head": 2,
        "n_embd": 32, "n_prelude": 1, "n_recur_block": 2, "n_coda": 1, "num_recur": 3,
        "bptt_k": 2, "input_injection": "inject_init_prelude", "num_lanes": 2,
        "logit_softcap": 15.0,
    } | changes  # fmt: skip
    config = {key: value for key, value in config.items() if value is not None}
    meta = {"step": 120, "val_loss": 3.2, "model_config": config}
    (folder / "meta_000120.json").write_text(json.dumps(meta))
    return folder


def huginn(folder: Path, **changes) -> Path:
    """model.safetensors, config.json."""
    _, weights = golden("huginn_elastic")
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["RavenForCausalLM"], "model_type": "huginn_raven", "bias": False,
        "architecture_class_name": "RecurrentGPT", "block_class_name": "SandwichBlock",
        "norm_class_name": "RMSNorm_llama", "mlp_class_name": "GatedMLP", "nonlin_name": "SiLU",
        "injection_type": "linear", "state_init": "like-init", "test_time_noise": 0,
        "n_embd": 32, "n_heads": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "n_layers_in_prelude": 1, "n_layers_in_recurrent_block": 2, "n_layers_in_coda": 1,
        "mean_recurrence": 4, "mean_backprop_depth": 8, "block_size": 16, "vocab_size": 40,
        "padded_vocab_size": 40, "intermediate_size": 48, "norm_eps": 1e-6, "qk_bias": True,
        "rope_base": 50000, "tie_embeddings": True, "torch_dtype": "bfloat16",
        "init_values": {"embed_scale": 32**0.5, "std": 0.4 / 32**0.5, "out_proj": 0.01},
    } | changes  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def readout(path: Path, config: dict | None, name: str = "perloop_rmsnorm", **tensors) -> Path:
    """last.pt with all that every file of the project holds; `config` changes its table "model".

    Without a config (None) the file is the state dict alone. Dots in the names of `tensors` are
    written as two underscores; None takes a tensor out.
    """
    _, weights = golden(f"readout_{name}")
    embedding = weights["token_embedding.weight"]
    weights |= {
        "raw_alpha": np.array(2.0, np.float32),
        "loop_norm.weight": np.ones(32, np.float32),
        "exit_gate.weight": np.full((1, 32), 0.1, np.float32),
        "exit_gate.bias": np.zeros(1, np.float32),
        "lm_head.weight": embedding,
    }
    weights |= {key.replace("__", "."): value for key, value in tensors.items()}
    state = torch_zip.state_dict({key: v for key, v in weights.items() if v is not None})
    if config is None:
        return torch_zip.save(state, path)
    model = {
        "d_model": 32, "num_heads": 2, "num_layers": 2, "ff_multiplier": 4, "dropout": 0.1,
        "num_loops": 4, "inter_loop_norm": False, "use_decode_norm": True, "tie_weights": True,
    } | config  # fmt: skip
    content = {
        "model_state": state,
        "optimizer_state": {"state": {0: {"step": embedding[0, :1], "exp_avg": embedding}}},
        "config": {
            "model": model, "data": {"seq_len": 16}, "supervision": {"mode": "per-step"},
            "train": {"lr": 3e-4, "resume": None},
        },
        "tokenizer": {"tokens": ["<pad>", "a"]},
        "epoch": 4,
        "global_step": 100,
    }  # fmt: skip
    return torch_zip.save(content, path)
