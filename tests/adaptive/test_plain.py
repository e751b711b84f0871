"""The plain account of exits itself, against one token after the other in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_jax.model.frozen import FrozenModel
from looped_jax.model.layers import rotary_angles, rotate
from tests.adaptive.plain import run_plainly
from tests.model.tiny import SANDWICH, random_params, tiny

R = 4
EXITS = np.array([[2, 4, 1, 3, 1, 4], [1, 1, 4, 2, 3, 1]], np.int32)


def test_it_is_decoding_with_a_cache_that_keeps_the_last_entry_of_every_loop():
    zeros = {"initial_state": "zeros", "initial_state_std": 0.0}
    model = tiny(**SANDWICH | zeros | {"prelude_layers": 0, "coda_layers": 0})
    params = random_params(model)
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, EXITS.shape)

    @jax.jit
    def run(params):
        frozen = FrozenModel(model, params)
        state, _ = run_plainly(model, params, tokens, None, EXITS, R)
        return frozen.prelude(frozen.embed(tokens)), state

    x, found = jax.device_get(run(params))
    np.testing.assert_allclose(found, decode(model, params, x), rtol=2e-3, atol=2e-4)


def decode(model, params, x_BTD):
    """One token after the other; its loop i sees the others' entries of loop i or their last."""
    core = jax.tree.map(np.asarray, params["core"])
    out = np.zeros_like(x_BTD)
    for b in range(x_BTD.shape[0]):
        cache = []  # of each token, loop and layer: (key, value)
        for t in range(x_BTD.shape[1]):
            state, entries = np.zeros(model.width, np.float32), []
            for i in range(EXITS[b, t]):
                h = np.concatenate([state, x_BTD[b, t]]) @ params["injection"]["kernel"]
                entries.append([])
                for layer in range(model.core_layers):
                    weights = jax.tree.map(lambda w, layer=layer: w[layer], core)
                    seen = [earlier[min(i, len(earlier) - 1)][layer] for earlier in cache]
                    h, entry = decode_layer(model, weights, h, t, seen)
                    entries[-1].append(entry)
                state = h
            cache.append(entries)
            out[b, t] = state
    return out


def decode_layer(model, weights, h_D, t, seen):
    """A sandwich layer on one token that attends to `seen` and itself."""
    norm = lambda name, v: v / np.sqrt(np.mean(v**2) + model.norm_epsilon) * weights[name]["scale"]
    kernel, bias = weights["attn"]["qkv"]["kernel"], weights["attn"]["qk_bias"]
    q, k, v = (norm("attn_norm", h_D) @ kernel[:, part] for part in range(3))
    angles = rotary_angles(model, jnp.full((1, 1), t))
    turn = lambda y: np.asarray(
        rotate(model, jnp.asarray(y.reshape(1, 1, model.heads, model.head_dim)), *angles)
    )[0, 0]
    q, k, v = turn(q + bias[0]), turn(k + bias[1]), v.reshape(model.heads, model.head_dim)
    keys, values = (np.stack([*[e[j] for e in seen], own]) for j, own in enumerate((k, v)))
    scores = np.einsum("Hd,SHd->HS", q, keys) * model.head_dim**-0.5
    share = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("HS,SHd->Hd", share / share.sum(-1, keepdims=True), values).reshape(-1)
    h_D = norm("attn_post_norm", h_D + mixed @ weights["attn"]["out"]["kernel"])
    gate_up = weights["mlp"]["gate_up"]["kernel"]
    gate, up = (norm("mlp_norm", h_D) @ gate_up[:, part] for part in range(2))
    hidden = gate / (1 + np.exp(-gate)) * up
    return norm("mlp_post_norm", h_D + hidden @ weights["mlp"]["down"]["kernel"]), (k, v)
