"""What training minimises: cross-entropy at the last or at every loop, and the norm penalty.

At every loop the target is the token that follows, or one that the data has for each loop.
"""

from typing import Any

import jax
import jax.numpy as jnp

from looped_jax.config import LossConfig
from looped_jax.model.config import ModelConfig
from looped_jax.model.lm import LoopedLM
from looped_jax.training import losses

Array = jax.Array


def objective(
    model: ModelConfig,
    loss: LossConfig,
    params: Any,
    tokens_BT: Array,
    recurrences: int | Array,
    rngs: dict[str, Array],
    loop_targets_BTR: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The objective of a batch and its parts, float32 nats.

    Args:
      tokens_BT: int32 (B, T + 1): inputs are all but the last, targets all but the first.
      recurrences: an int, or int32 () or (B,); a loss at every loop or a norm penalty runs the
        config's number instead (resolve refuses other depths there).
      rngs: keys for dropout and for a noisy initial state.
      loop_targets_BTR: int32, the target of every loop, with supervision "by_loop" alone.

    Returns:
      (objective, {"loss": cross-entropy, …}).
    """
    lm = LoopedLM(model, deterministic=False)
    inputs_BT, targets_N = tokens_BT[:, :-1], tokens_BT[:, 1:].reshape(-1)

    def apply(method: str, *args: Any) -> Any:
        return lm.apply({"params": params}, *args, method=method, rngs=rngs)

    kernel_DV = apply("head_kernel")
    cap = model.softcap or None
    if loss.supervision == "last" and not loss.norm_penalty:
        h_BTD = apply("hidden", inputs_BT, recurrences)
        h_ND = apply("readout_input", h_BTD).reshape(-1, model.width)
        ce = losses.chunked_cross_entropy(h_ND, kernel_DV, targets_N, softcap=cap, chunk=loss.chunk)
        return ce, {"loss": ce}

    input_BTD = apply("prelude", apply("embed", inputs_BT))
    states_R = apply("trajectory", apply("initial_state", input_BTD), input_BTD, model.recurrences)
    h_RND = loop_readout_inputs(model, params, states_R, rngs).reshape(
        model.recurrences, -1, model.width
    )
    metrics: dict[str, Array] = {}
    if loss.supervision != "last":
        weights = loss.loop_weights or (1.0 / model.recurrences,) * model.recurrences
        targets = targets_N
        if loss.supervision == "by_loop":
            assert loop_targets_BTR is not None
            targets = jnp.moveaxis(loop_targets_BTR, -1, 0).reshape(model.recurrences, -1)
        ce, ce_R = losses.loop_cross_entropy(
            h_RND,
            kernel_DV,
            targets,
            jnp.asarray(weights, jnp.float32),
            softcap=cap,
            chunk=loss.chunk,
        )
        metrics["loss"], metrics["mean_loop_loss"] = ce_R[-1], ce
    else:
        ce = losses.chunked_cross_entropy(
            h_RND[-1], kernel_DV, targets_N, softcap=cap, chunk=loss.chunk
        )
        metrics["loss"] = ce
    if not loss.norm_penalty:
        return ce, metrics
    penalty = losses.norm_penalty(states_R)
    metrics["mean_square_state"] = penalty
    return ce + loss.norm_penalty * penalty, metrics


def loop_readout_inputs(
    model: ModelConfig, params: Any, states_R: Array, rngs: dict[str, Array]
) -> Array:
    """What the head multiplies at every loop, (R, B, T, D): coda and readout norm of each state."""
    lm = LoopedLM(model, deterministic=False)

    def read(state: Array, *, last: bool) -> Array:
        variables = {"params": params}
        h_BTD = lm.apply(variables, state, method="coda", rngs=rngs)
        return lm.apply(variables, h_BTD, method="readout_input", last=last)  # type: ignore[return-value]

    # The readout norm may differ at the last loop, so that one is read by itself.
    final = read(states_R[-1], last=True)[None]
    if states_R.shape[0] == 1:
        return final
    earlier = jax.lax.map(
        jax.checkpoint(lambda state: read(state, last=False), prevent_cse=False), states_R[:-1]
    )
    return jnp.concatenate([earlier, final])
