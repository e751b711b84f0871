"""The published readout model (arXiv:2606.24898) in NumPy, from tensors under its own names."""

from collections.abc import Mapping

import numpy as np

EPSILON = 1e-6


def loop_logits(
    tensors: Mapping[str, np.ndarray], tokens_BT: np.ndarray, *, heads: int, loops: int
) -> np.ndarray:
    """Logits after every loop (K, B, T, V), in float64.

    A loop ends with its readout, through `decode_norm.weight` if there is one; then the state is
    normalised for the next loop by `loop_norm.weight`, if there is one.
    """
    w = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    h_BTD = w["token_embedding.weight"][tokens_BT]
    h_BTD = h_BTD + w["position_embedding.weight"][: tokens_BT.shape[1]]
    logits = []
    for _ in range(loops):
        layer = 0
        while f"layers.{layer}.attn.qkv.weight" in w:
            start = f"layers.{layer}."
            h_BTD = h_BTD + _attention(
                w, f"{start}attn.", _norm(w, f"{start}attn_norm", h_BTD), heads
            )
            h_BTD = h_BTD + _mlp(w, f"{start}ffn.", _norm(w, f"{start}ffn_norm", h_BTD))
            layer += 1
        logits.append(_norm(w, "decode_norm", h_BTD) @ w["token_embedding.weight"].T)
        h_BTD = _norm(w, "loop_norm", h_BTD)
    return np.stack(logits)


def _norm(w, name, x_BTD):
    """RMSNorm with the named scale; x itself without one."""
    if f"{name}.weight" not in w:
        return x_BTD
    mean_square = np.mean(np.square(x_BTD), axis=-1, keepdims=True)
    return x_BTD / np.sqrt(mean_square + EPSILON) * w[f"{name}.weight"]


def _attention(w, start, x_BTD, heads):
    B, T, D = x_BTD.shape
    qkv = x_BTD @ w[f"{start}qkv.weight"].T
    q, k, v = np.moveaxis(qkv.reshape(B, T, 3, heads, D // heads), (2, 3), (0, 2))
    scores_BHTS = q @ np.swapaxes(k, 2, 3) / np.sqrt(D // heads)
    scores_BHTS = np.where(np.tril(np.ones((T, T), bool)), scores_BHTS, -np.inf)
    weights = np.exp(scores_BHTS - scores_BHTS.max(-1, keepdims=True))
    mixed_BHTd = weights / weights.sum(-1, keepdims=True) @ v
    return np.moveaxis(mixed_BHTd, 1, 2).reshape(B, T, D) @ w[f"{start}out_proj.weight"].T


def _mlp(w, start, x_BTD):
    gate, up = (x_BTD @ w[f"{start}{name}.weight"].T for name in ("w1", "w3"))
    return gate / (1 + np.exp(-gate)) * up @ w[f"{start}w2.weight"].T
