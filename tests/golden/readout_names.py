"""Parameter names of the published readout model (arXiv:2606.24898) in this tree."""

from collections.abc import Mapping

import numpy as np


def to_params(arrays: Mapping[str, np.ndarray], prefix: str = "param/") -> dict:
    """The nested parameter tree; gradients (`prefix='grad/'`) map the same way.

    Layers are stacked on axis 0 and kernels become (in, out); the fused q, k, v map is
    `attn/qkv/kernel` (L, D, 3, A); w1 is the gate and w3 the up half of `mlp/gate_up/kernel`.
    """
    start = f"{prefix}layers."
    layers = 1 + max(int(n[len(start) :].split(".")[0]) for n in arrays if n.startswith(start))
    stack = lambda name: np.stack([arrays[f"{start}{i}.{name}.weight"] for i in range(layers)])
    kernel = lambda name: stack(name).swapaxes(1, 2)
    qkv = kernel("attn.qkv")
    params = {
        "embed": {"embedding": arrays[f"{prefix}token_embedding.weight"]},
        "positions": {"embedding": arrays[f"{prefix}position_embedding.weight"]},
        "core": {
            "attn_norm": {"scale": stack("attn_norm")},
            "mlp_norm": {"scale": stack("ffn_norm")},
            "attn": {
                "qkv": {"kernel": qkv.reshape(*qkv.shape[:2], 3, -1)},
                "out": {"kernel": kernel("attn.out_proj")},
            },
            "mlp": {
                "gate_up": {"kernel": np.stack([kernel("ffn.w1"), kernel("ffn.w3")], axis=2)},
                "down": {"kernel": kernel("ffn.w2")},
            },
        },
    }
    if (norm := f"{prefix}decode_norm.weight") in arrays:
        params["final_norm"] = {"scale": arrays[norm]}
    return params
