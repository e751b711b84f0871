"""Exits told plainly: every token runs every loop, and what has exited is put back each time.

A small model that scoring and decoding are tested on, and the account they are held against.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.scoring import scorer
from looped_jax.model.attention import Context, attention_at
from looped_jax.model.cache import KeysValues, empty
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel
from tests.model.tiny import SANDWICH, random_params, tiny

Array = jax.Array

# From noise, so that rows have to draw their own.
MODEL = tiny(**SANDWICH)
PARAMS = random_params(MODEL)
B, T, R, CHUNK = 3, MODEL.max_length, 5, 20
LOOKS = Rule.parse("change:0").looks
# (params, tokens, length, keys, Exits, forced), with fewer stages than users have, to compile less.
SCORER = scorer(MODEL, LOOKS, CHUNK, (0.5, 0.15))


def keeping(shown: KeysValues, exited_BT: Array) -> Context:
    """Causal attention in which exited tokens show the keys and values they had when they last ran.

    Args:
      shown: by layer what each token shows, (1, L, B, H, T, d); those that go on show their new.
    """

    def attend(layer, q_BTHd, k_BTHd, v_BTHd, shown):
        exited_BHTd = exited_BT[:, None, :, None]
        now = KeysValues(
            jnp.where(exited_BHTd, shown.key[0, layer], jnp.swapaxes(k_BTHd, 1, 2)),
            jnp.where(exited_BHTd, shown.value[0, layer], jnp.swapaxes(v_BTHd, 1, 2)),
        )
        mixed = attention_at(jnp.swapaxes(q_BTHd, 1, 2), *now, places_1T)
        put = lambda entries, new: entries.at[0, layer].set(new)
        return jnp.swapaxes(mixed, 1, 2), jax.tree.map(put, shown, now)

    places_1T = jnp.arange(exited_BT.shape[1])[None]
    return Context(places_1T, attend, shown)


def run_plainly(
    model: ModelConfig,
    params: Any,
    inputs_BT: Array,
    keys_B: Array | None,
    forced_BT: Array,
    recurrences: int,
    observe: Callable[[Array, Array, Any], tuple[Any, Any]] = lambda old, new, memory: (None, None),
    memory: Any = None,
) -> tuple[Array, Any]:
    """The states (B, T, D) that tokens have after so many loops each, and what was observed.

    Args:
      forced_BT: the loop after which each token exits.
      observe: (state before, after a loop, memory) -> (values, memory); values are stacked by loop.
    """
    frozen = FrozenModel(model, params)
    input_BTD = frozen.prelude(frozen.embed(inputs_BT))
    start = frozen.initial_state(input_BTD, keys_B=keys_B)

    def loop(carried, index):
        state, shown, memory = carried
        exited_BT = index >= forced_BT
        new, shown = frozen.recur(state, input_BTD, index, keeping(shown, exited_BT))
        values, memory = observe(state, new, memory)
        return (jnp.where(exited_BT[..., None], state, new), shown, memory), values

    shown = empty(model, 1, *inputs_BT.shape)["core"]
    loops = jnp.arange(recurrences, dtype=jnp.int32)
    (state, _, _), values = jax.lax.scan(loop, (start, shown, memory), loops)
    return state, values
