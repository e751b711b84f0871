"""Parameter names of the published iso-depth model (arXiv:2604.21106) in this project's tree."""

import re
from collections.abc import Mapping

import numpy as np

STACKS = {"prelude": "prelude", "recur": "core", "coda": "coda"}
LAYER = re.compile(r"transformer\.(prelude|recur|coda)\.(\d+)\.(.+)\.weight")
PARTS = frozenset(
    ("attn.c_q", "attn.c_k", "attn.c_v", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "n1", "n3")
)
# Published name → (path, whether it is a linear map, stored there as (out, in)).
OUTSIDE = {
    "transformer.wte.weight": (("embed", "embedding"), False),
    "norm_emb.weight": (("embed_norm", "scale"), False),
    "inject.weight": (("injection", "kernel"), True),
    "norm_recur.weight": (("state_norm", "scale"), False),
    "norm_final.weight": (("final_norm", "scale"), False),
    "lm_head.weight": (("head", "kernel"), True),
    "lane_alpha": (("lanes", "alpha"), False),
    "lane_mixing": (("lanes", "mixing"), False),
    "lane_beta": (("lanes", "beta"), False),
}


def to_params(arrays: Mapping[str, np.ndarray], prefix: str = "param/") -> dict:
    """The nested parameter tree of the arrays whose names start with `prefix`.

    Layers are stacked on axis 0, kernels become (in, out), and the q, k and v maps are joined to
    `attn/qkv/kernel` (L, D, 3, A). Gradients (`prefix='grad/'`) map the same way. A name that is
    not understood raises KeyError.
    """
    params: dict = {}
    layers: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for name, array in arrays.items():
        if not name.startswith(prefix):
            continue
        name = name.removeprefix(prefix)
        if match := LAYER.fullmatch(name):
            stack, index, part = match.groups()
            layers.setdefault(STACKS[stack], {}).setdefault(int(index), {})[part] = array
        else:
            (module, leaf), is_linear = OUTSIDE[name]
            params.setdefault(module, {})[leaf] = array.T if is_linear else array
    for stack, by_index in layers.items():
        params[stack] = _stacked([by_index[i] for i in range(len(by_index))])
    return params


def _stacked(layers: list[dict[str, np.ndarray]]) -> dict:
    if unknown := {part for layer in layers for part in layer} - PARTS:
        raise KeyError(f"parts of a layer that are not understood: {sorted(unknown)}")

    def vectors(part: str) -> np.ndarray:
        return np.stack([layer[part] for layer in layers])

    def kernels(part: str) -> np.ndarray:
        return np.stack([layer[part].T for layer in layers])

    qkv = np.stack([kernels(f"attn.c_{x}") for x in "qkv"], axis=2)
    return {
        "attn_norm": {"scale": vectors("n1")},
        "attn": {"qkv": {"kernel": qkv}, "out": {"kernel": kernels("attn.c_proj")}},
        "mlp_norm": {"scale": vectors("n3")},
        "mlp": {"up": {"kernel": kernels("mlp.c_fc")}, "down": {"kernel": kernels("mlp.c_proj")}},
    }
