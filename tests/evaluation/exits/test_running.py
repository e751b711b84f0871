"""Running with exits: each carry against a plain, slow account of what it means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_jax.evaluation.exits.policies import POLICIES
from looped_jax.evaluation.exits.probe import Probe
from looped_jax.evaluation.exits.running import exit_scorer, run_with_exits
from looped_jax.model.frozen import FrozenModel
from looped_jax.model.layers import rotary_angles, rotate
from looped_jax.model.lm import LoopedLM
from tests.evaluation.conftest import elastic, some_tokens
from tests.model.tiny import random_params

R = 4
EXITS = np.array([[2, 4, 1, 3, 1, 4, 2, 3], [1, 1, 4, 2, 3, 1, 4, 2]], np.int32)


def no_probe(model):
    return Probe(np.zeros(model.width, np.float32), np.float32(0))


def test_carry_is_decoding_with_a_cache_that_keeps_the_last_entry_of_every_loop():
    model = elastic()
    params, tokens = random_params(model), some_tokens(model)[:, :-1]
    run = jax.jit(
        lambda params: run_with_exits(
            model, params, tokens, POLICIES["oracle_kl"], no_probe(model), jnp.float32(0),
            jnp.asarray(EXITS), recurrences=R, chunk=64,
        )
    )  # fmt: skip
    found, loop = jax.device_get(run(params))
    np.testing.assert_array_equal(loop, EXITS)
    frozen = FrozenModel(model, params)
    x = np.asarray(frozen.prelude(frozen.embed(tokens)))
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


@pytest.fixture(scope="module")
def logits_at():
    """Logits of the tokens at a depth, by the model itself."""
    model = elastic()
    tokens = some_tokens(model)[:, :-1]
    run = jax.jit(lambda p, depth: LoopedLM(model).apply({"params": p}, tokens, depth))
    return lambda depth: np.asarray(run(random_params(model), jnp.int32(depth)))


@pytest.mark.parametrize(("policy", "first"), [("kl", 2), ("argmax", 2), ("oracle_kl", 1)])
def test_none_or_all_at_once_is_uniform_depth(policy, first, trained, logits_at):
    run = trained(elastic())
    model, tokens = run.run.model, some_tokens(run.run.model)
    scorer = exit_scorer(model, policy, R, 64, run.mesh)
    for threshold, depth in ((-1e9, R), (1e9, first)):
        exits, _ = scorer(
            run.params, tokens, np.ones((2, 8), bool), no_probe(model), jnp.float32(threshold)
        )
        assert (exits.loop == depth).all()
        log_p = jax.nn.log_softmax(logits_at(depth))
        nats = -jnp.take_along_axis(log_p, tokens[:, 1:, None], -1)[..., 0]
        np.testing.assert_allclose(exits.nats, nats, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(exits.argmax, log_p.argmax(-1))
