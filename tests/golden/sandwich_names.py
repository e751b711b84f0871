"""Parameter names of the published depth-recurrent model (arXiv:2502.05171) in this tree."""

from collections.abc import Mapping

import numpy as np

STACKS = {"prelude": "prelude", "core_block": "core", "coda": "coda"}


def to_params(arrays: Mapping[str, np.ndarray], prefix: str = "param/") -> dict:
    """The nested parameter tree; gradients (`prefix='grad/'`) map the same way.

    Layers are stacked on axis 0 and kernels become (in, out); the fused q, k, v map is
    `attn/qkv/kernel` (L, D, 3, A), the halves of `fc` are `mlp/gate_up/kernel` (L, D, 2, F).
    """
    of = lambda name: arrays[f"{prefix}transformer.{name}"]
    params: dict = {
        "embed": {"embedding": of("wte.weight")},
        "injection": {"kernel": of("adapter.weight").T},
        "state_norm": {"scale": of("ln_f.weight")},
    }
    for published, ours in STACKS.items():
        start = f"{prefix}transformer.{published}."
        names = [name for name in arrays if name.startswith(start)]
        layers = 1 + max(int(name[len(start) :].split(".")[0]) for name in names)
        params[ours] = _stack([_layer(arrays, f"{start}{i}.") for i in range(layers)])
    return params


def _layer(arrays: Mapping[str, np.ndarray], start: str) -> dict:
    of = lambda name: arrays[start + name]
    D = of("attn.proj.weight").shape[0]
    return {
        "attn_norm": {"scale": of("norm_1.weight")},
        "attn_post_norm": {"scale": of("norm_2.weight")},
        "mlp_norm": {"scale": of("norm_3.weight")},
        "mlp_post_norm": {"scale": of("norm_4.weight")},
        "attn": {
            "qk_bias": of("attn.qk_bias").reshape(2, -1),
            "qkv": {"kernel": of("attn.Wqkv.weight").T.reshape(D, 3, -1)},
            "out": {"kernel": of("attn.proj.weight").T},
        },
        "mlp": {
            "gate_up": {"kernel": of("mlp.fc.weight").T.reshape(D, 2, -1)},
            "down": {"kernel": of("mlp.proj.weight").T},
        },
    }


def _stack(layers: list) -> dict:
    if isinstance(layers[0], dict):
        return {key: _stack([layer[key] for layer in layers]) for key in layers[0]}
    return np.stack(layers)
