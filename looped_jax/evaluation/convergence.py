"""Where each token settles: how its output distribution converges from loop to loop.

A token settles at ε at the first loop i from which KL(p_j ‖ p_{j−1}) < ε for all j ≥ i among the R
loops that were run. The first loop that can be compared is the second, so 2 is the least; a token
whose last divergence is still ε or more has not settled within R loops.
"""

from typing import Any

import numpy as np
import pandas as pd

from looped_jax.evaluation import depth
from looped_jax.evaluation.scored.bootstrap import Bootstrap, Estimate, estimate, estimates
from looped_jax.evaluation.scored.tables import list_column, write_parquet
from looped_jax.evaluation.scored.token_types import TYPES, token_types
from looped_jax.evaluation.scored.trajectory import Loops, loop_scorer
from looped_jax.evaluation.scored.windows import ScoredText, score, training_counts
from looped_jax.evaluation.trained import Trained

TABLE = "convergence.parquet"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
GROUPS = 5  # equal parts by loss, position and frequency


def convergence_suite(trained: Trained) -> dict[str, Any]:
    """Per-loop divergence, argmax changes and movement of the state; where tokens settle.

    The summary's part holds aggregates with their intervals; convergence.parquet in the run folder
    has a row for each token (see `token_table`).
    """
    run, settings = trained.run, trained.settings
    R = settings.chosen_recurrences(run)
    scorer = loop_scorer(run.model, R, run.loss.chunk, trained.mesh)
    loops, text = score(trained, scorer, "convergence")
    mean_depth = min(R, max(1, round(run.depth.mean)))
    table = token_table(trained, loops, text, mean_depth)
    write_parquet(trained.out / TABLE, table)
    bootstrap = Bootstrap(text, settings.resamples, settings.seed)
    of_groups = groups(table)
    return {
        "training": depth.training(trained),
        "recurrences": R,
        "mean_depth": mean_depth,
        "tokens": len(text),
        "table": TABLE,
        "bootstrap": bootstrap.describe(),
        "loops": list(range(2, R + 1)),
        "kl": per_loop(bootstrap, loops.kl[1:]),
        "relative_change": per_loop(bootstrap, loops.change[1:]),
        "angle": per_loop(bootstrap, loops.angle[1:]),
        "argmax_changed": estimates(bootstrap.means(loops.argmax[1:] != loops.argmax[:-1])),
        "settled": [
            {"epsilon": epsilon}
            | settled(bootstrap, settling_loop(loops.kl, epsilon), R, mean_depth, of_groups)
            for epsilon in sorted(settings.epsilons, reverse=True)
        ],
    }


def settling_loop(kl_RN: np.ndarray, epsilon: float) -> np.ndarray:
    """First loop from which KL stays below ε, int (N,), 2 … R; R + 1 for tokens that never settle.

    Args:
      kl_RN: KL(p_i ‖ p_{i−1}) of loops 1 … R; the first row is not looked at.
    """
    R = len(kl_RN)
    above_RN = ~(kl_RN[1:] < epsilon)  # a NaN has not settled
    last_above_N = R - np.argmax(above_RN[::-1], axis=0)
    return np.where(above_RN.any(axis=0), last_above_N + 1, 2)


def per_loop(bootstrap: Bootstrap, values_RN: np.ndarray) -> dict[str, Any]:
    """Mean and median with their intervals, and the quantiles over tokens, of every loop."""
    return {
        "mean": estimates(bootstrap.means(values_RN)),
        "median": [estimate(bootstrap.medians(row)).to_json() for row in values_RN],
        "quantiles": {str(q): np.quantile(values_RN, q, axis=1).tolist() for q in QUANTILES},
    }


def settled(
    bootstrap: Bootstrap,
    settled_N: np.ndarray,
    R: int,
    mean_depth: int,
    of_groups: dict[str, dict[str, np.ndarray]],
) -> dict[str, Any]:
    """How settling loops are distributed, over all tokens and in each group."""
    one = lambda keep_N: _distribution(bootstrap, settled_N, R, mean_depth, keep_N)
    everything = one(np.ones(len(settled_N), bool))
    return everything | {
        f"by_{grouping}": {name: one(keep_N) for name, keep_N in members.items() if keep_N.any()}
        for grouping, members in of_groups.items()
    }


def _distribution(
    bootstrap: Bootstrap, settled_N: np.ndarray, R: int, mean_depth: int, keep_N: np.ndarray
) -> dict[str, Any]:
    """Counts of tokens that settle at loops 2 … R and of those that do not; median; tail."""
    is_at_N = settled_N[None] == np.arange(2, R + 2)[:, None]
    counts_LU = bootstrap.sums(is_at_N & keep_N)
    share_LS = bootstrap.ratio(counts_LU, bootstrap.sums(keep_N))
    counts = counts_LU.sum(axis=1).astype(int)
    # The median of R + 1 says that half of the tokens have not settled.
    median_S = 2 + np.argmax(np.cumsum(share_LS, axis=0) >= 0.5 - 1e-9, axis=0)
    defined = np.isfinite(share_LS[0])
    tail_S = share_LS[mean_depth - 1 :].sum(axis=0)
    return {
        "tokens": int(counts.sum()),
        "histogram": counts[:-1].tolist(),
        "unsettled": int(counts[-1]),
        "median": Estimate.of(median_S[0], np.where(defined, median_S, np.nan)[1:]).to_json(),
        "tail_at_mean": estimate(tail_S).to_json(),
    }


def groups(table: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """Tokens by type, and in five equal parts by loss, position in the window and frequency."""
    by_type = {name: (table["type"] == name).to_numpy() for name in TYPES}
    parts = {
        name: _equal_parts(table[column].to_numpy())
        for name, column in (("loss", "nats"), ("position", "position"), ("frequency", "count"))
    }
    return {"type": by_type, **parts}


def _equal_parts(values_N: np.ndarray) -> dict[str, np.ndarray]:
    """Fifths of the tokens by rank, named by the range of values; ties stay together."""
    edges = np.unique(np.quantile(values_N, np.linspace(0, 1, GROUPS + 1)))
    if len(edges) == 1:
        return {f"{edges[0]:.3g}": np.ones(len(values_N), bool)}
    part_N = np.clip(np.searchsorted(edges, values_N, side="right") - 1, 0, len(edges) - 2)
    return {
        f"{edges[i]:.3g} to {edges[i + 1]:.3g}": part_N == i
        for i in range(len(edges) - 1)
        if (part_N == i).any()
    }


def token_table(trained: Trained, loops: Loops, text: ScoredText, mean_depth: int) -> pd.DataFrame:
    """One row for each token.

    Columns: window, position, document; token (id of the input); target, text, type and count (the
    predicted token: its id, its characters, its kind, how often it stands in the training text);
    nats (at the training mean), nats_last (at loop R); argmax_settled (first loop from which the
    most likely token stays the same); and lists over loops: kl, relative_change, angle (loops
    2 … R), argmax (loops 1 … R).
    """
    tokenizer, end_of_text = trained.data.tokenizer(), trained.data.end_of_text_id
    characters = {int(i): tokenizer.decode([i]) for i in np.unique([text.target, text.token])}
    texts = [characters[int(i)] for i in text.target]
    before = characters[int(text.token[0])]
    stays_RN = np.cumprod((loops.argmax == loops.argmax[-1])[::-1], axis=0)
    return pd.DataFrame(
        {
            "window": text.window.astype(np.int32),
            "position": text.position.astype(np.int32),
            "document": text.document.astype(np.int32),
            "token": text.token,
            "target": text.target,
            "text": texts,
            "type": token_types(texts, text.target == end_of_text, before),
            "count": training_counts(trained.data)[text.target],
            "nats": loops.nats[mean_depth - 1],
            "nats_last": loops.nats[-1],
            "argmax_settled": (len(loops.argmax) + 1 - stays_RN.sum(axis=0)).astype(np.int32),
            "kl": list_column(loops.kl[1:]),
            "relative_change": list_column(loops.change[1:]),
            "angle": list_column(loops.angle[1:]),
            "argmax": list_column(loops.argmax),
        }
    )
