"""Keys and values of earlier tokens, so that a new token runs alone (two flax collections).

"past"     read: {"length": (B,), STACK: {"attn": {"key", "value", "length"}}} for STACK in prelude,
           core, coda; keys and values are (L, B, H, S, d), lengths (L, B). Given to `apply`, the
           tokens of the call stand after the first `length` entries of each row; without it they
           begin a text.
"written"  made where `apply` names it in `mutable`: {STACK: {"attn": {"key", "value"}}}, each
           (L, B, H, T, d), what the tokens of this call add.

The model neither allocates nor updates a cache: who runs it decides what is kept of which
recurrence.
"""

import jax
import jax.numpy as jnp

Array = jax.Array

PAST = "past"
WRITTEN = "written"


def attend_with_past(
    q_BHTd: Array,
    k_BHTd: Array,
    v_BHTd: Array,
    past_k_BHSd: Array,
    past_v_BHSd: Array,
    length_B: Array,
) -> Array:
    """Softmax attention (B, H, T, d) to `length_B` past entries and, causally, to the new ones.

    Scores and softmax are in float32, as in `layers.causal_attention`.
    """
    T, S = k_BHTd.shape[2], past_k_BHSd.shape[2]
    q_BHTd = q_BHTd * q_BHTd.dtype.type(q_BHTd.shape[3] ** -0.5)
    score = lambda k: jnp.matmul(q_BHTd, jnp.swapaxes(k, 2, 3), preferred_element_type=jnp.float32)
    of_past_BHTS, of_new_BHTT = score(past_k_BHSd), score(k_BHTd)
    filled_BS = jnp.arange(S)[None] < length_B[:, None]
    causal_TT = jnp.tril(jnp.ones((T, T), bool))
    hidden = jnp.float32(-jnp.inf)
    scores = jnp.concatenate(
        [
            jnp.where(filled_BS[:, None, None], of_past_BHTS, hidden),
            jnp.where(causal_TT[None, None], of_new_BHTT, hidden),
        ],
        axis=-1,
    )
    weights = jax.nn.softmax(scores, axis=-1).astype(v_BHTd.dtype)
    return jnp.matmul(weights[..., :S], past_v_BHSd) + jnp.matmul(weights[..., S:], v_BHTd)
