"""The exit policy A2's probe: a linear map of the state that predicts the oracle's label.

The label of (token, loop i): will the argmax still change after loop i, up to loop R? A logistic
regression on standardised states, fitted on a sample of pairs from text that is not scored.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.adaptive.signals import Probe
from looped_jax.evaluation.scored.trajectory import each_token, unroll
from looped_jax.evaluation.scored.windows import run_batches
from looped_jax.evaluation.trained import Trained
from looped_jax.model.config import ModelConfig

EXAMPLES = 1 << 15  # pairs of token and loop that the probe is fitted on
RIDGE = 1e-4  # times half the squared norm of the standardised weights


@dataclasses.dataclass(frozen=True)
class FittedProbe:
    """A probe and the pairs that it was fitted on; with lanes its weights are (K · D,)."""

    probe: Probe
    examples: int
    share_changing: float


def fit_probe(trained: Trained, windows: range, recurrences: int) -> FittedProbe:
    """Fits the probe on pairs of token and loop 1 … R − 1 of these windows.

    On every pair once where there are at most `EXAMPLES`, else on so many, drawn evenly.
    """
    run = trained.run
    batches = -(-len(windows) // run.evaluation.batch_size)
    sampler = pair_sampler(
        run.model, recurrences, -(-EXAMPLES // batches), run.loss.chunk, trained.mesh
    )
    seed = jnp.uint32(trained.settings.seed)
    features, labels = [], []
    for _, (state_PF, label_P, counts_P) in run_batches(
        trained, sampler, "exits: probe", seed, windows=windows
    ):
        features.append(state_PF[counts_P])
        labels.append(label_P[counts_P])
    label_P = np.concatenate(labels)
    probe = logistic_regression(np.concatenate(features), label_P)
    return FittedProbe(probe, len(label_P), float(label_P.mean()))


@functools.lru_cache(maxsize=8)
def pair_sampler(
    model: ModelConfig, recurrences: int, pairs: int, chunk: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask, seed) -> states (P, F), label, mask (P,).

    F = D, or K · D with hyperconnections. All pairs of the batch if there are no more than `pairs`.
    """

    def sample(params, tokens_BT, mask_BT, seed):
        inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
        observe = lambda state: {"state": features(state)}
        h_RBTD, seen = unroll(model, params, inputs_BT, recurrences, observe)
        argmax = lambda logits_CV, _: jnp.argmax(logits_CV, -1).astype(jnp.int32)
        argmax_RBT = each_token(model, params, h_RBTD, targets_BT, chunk, argmax)
        changes_RBT = argmax_RBT[1:] != argmax_RBT[:-1]
        label_RBT = jnp.cumsum(changes_RBT[::-1], axis=0)[::-1] > 0
        state_RNF = seen["state"].reshape(recurrences, mask_BT.size, -1)
        if (recurrences - 1) * mask_BT.size <= pairs:
            state_PF = state_RNF[:-1].reshape(-1, state_RNF.shape[-1])
            return state_PF, label_RBT.reshape(-1), jnp.tile(mask_BT.reshape(-1), recurrences - 1)
        # The text itself makes the draws of its batches differ.
        key = jax.random.fold_in(jax.random.key(seed), jnp.sum(inputs_BT))
        loop_key, token_key = jax.random.split(key)
        loop_P = jax.random.randint(loop_key, (pairs,), 0, recurrences - 1)
        token_P = jax.random.randint(token_key, (pairs,), 0, mask_BT.size)
        state_PF = state_RNF[loop_P, token_P]
        label_P = label_RBT.reshape(recurrences - 1, -1)[loop_P, token_P]
        return state_PF, label_P, mask_BT.reshape(-1)[token_P]

    return jax.jit(sample, out_shardings=parallel.replicated(mesh))


def logistic_regression(features_PF: np.ndarray, label_P: np.ndarray) -> Probe:
    """Ridge-penalised maximum likelihood by L-BFGS, on standardised features; for raw features."""
    from scipy.optimize import minimize  # a second to import all of it, and most suites fit nothing
    from scipy.special import expit

    x = np.asarray(features_PF, np.float64)
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    x = (x - centre) / scale
    sign = np.where(label_P, 1.0, -1.0)

    def objective(theta):
        margin = sign * (x @ theta[:-1] + theta[-1])
        slope = -sign * expit(-margin) / len(sign)
        value = np.logaddexp(0, -margin).mean() + RIDGE / 2 * theta[:-1] @ theta[:-1]
        return value, np.append(x.T @ slope + RIDGE * theta[:-1], slope.sum())

    start = np.zeros(x.shape[1] + 1)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    weights = found.x[:-1] / scale
    bias = found.x[-1] - centre @ weights
    return Probe(weights.astype(np.float32), np.float32(bias))


def ranking_quality(score_P: np.ndarray, label_P: np.ndarray) -> float:
    """Area under the ROC curve: how often a changing pair scores above one that does not."""
    positives = int(label_P.sum())
    negatives = len(label_P) - positives
    if not positives or not negatives:
        return float("nan")
    from scipy.stats import rankdata

    ranks = rankdata(score_P)[np.asarray(label_P, bool)].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def features(state: jax.Array) -> jax.Array:
    """The state of each token (B, T, D), or its lanes beside each other (B, T, K · D); float32."""
    if state.ndim == 4:
        state = jnp.moveaxis(state, 0, 2).reshape(*state.shape[1:3], -1)
    return state.astype(jnp.float32)
