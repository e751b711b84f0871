"""What there is to see in a trained run, as numbers."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.evaluation.scored import radial
from looped_jax.evaluation.scored.bootstrap import Bootstrap, Estimate, estimate
from looped_jax.evaluation.scored.trajectory import distributions, unroll
from looped_jax.evaluation.scored.windows import ScoredText, score
from looped_jax.evaluation.trained import Trained
from looped_jax.generation.generator import Generator, Result
from looped_jax.generation.sampling import Sampling
from looped_jax.inspection.matrices import matrix_table
from looped_jax.model.accounting import Parameters, count_parameters
from looped_jax.model.config import ModelConfig

# Tokens of the held-out text that the heat map shows.
PASSAGE_TOKENS = 48
# Tokens of it that the samples go on from, where the context has room.
PROMPT_TOKENS = 12
QUANTILES = (0.05, 0.5, 0.95)


@dataclasses.dataclass(frozen=True)
class PerLoop:
    """A quantity of tokens at every loop.

    Attributes:
      loops: their numbers, from 1.
      mean: over tokens, with its interval.
      quantiles: {0.05: (R,), …} over tokens.
    """

    loops: list[int]
    mean: list[Estimate]
    quantiles: dict[float, list[float]]


@dataclasses.dataclass(frozen=True)
class Passage:
    """Predicted tokens of the held-out text: their texts, and KL(p_i ‖ p_{i−1}) (R − 1, tokens)."""

    texts: list[str]
    loops: list[int]
    kl: np.ndarray


@dataclasses.dataclass(frozen=True)
class Inspection:
    """All views of one run.

    Attributes:
      name: the run's.
      model: its configuration.
      training: lines about how it was trained.
      parameters: their number by part.
      matrices: see `matrix_table`.
      mean_depth: recurrences in training, on average.
      tokens: how many predictions the per-loop views are over.
      loss: nats if loop i were the last.
      gain: that loss minus the one at the mean depth, paired over the same text.
      kl: KL(p_i ‖ p_{i−1}) in nats, from loop 2.
      norm: ‖H_i‖ of the state after loop i (over the width, and the lanes if there are any).
      passage: the beginning of the held-out text.
      prompt, samples: greedy text at several depths.
    """

    name: str
    model: ModelConfig
    training: dict[str, Any]
    parameters: Parameters
    matrices: pd.DataFrame
    mean_depth: float
    tokens: int
    loss: PerLoop
    gain: PerLoop
    kl: PerLoop
    norm: PerLoop
    passage: Passage
    prompt: str
    samples: dict[int, Result]


def inspect(
    trained: Trained,
    *,
    prompt: str | None = None,
    depths: Sequence[int] = (),
    max_tokens: int = 40,
) -> Inspection:
    """Looks at a run on the held-out text that its settings choose.

    Args:
      prompt: of the samples; None for the first words of the held-out text.
      depths: of the samples; () for 1, half of, once and twice the mean training depth.
      max_tokens: most tokens of a sample.
    """
    run, data = trained.run, trained.data
    T = run.model.max_length
    R = trained.settings.chosen_recurrences(run)
    seen, text = inspect_loops(trained, R)
    bootstrap = Bootstrap(text, trained.settings.resamples, trained.settings.seed)
    tokenizer = data.tokenizer()
    shown = slice(0, PASSAGE_TOKENS)
    at_mean = min(R, max(1, round(run.depth.mean)))
    loops = list(range(1, R + 1))
    per_loop = lambda values_RN, loops: PerLoop(
        loops,
        [estimate(row_S) for row_S in bootstrap.means(values_RN)],
        {q: np.quantile(values_RN, q, axis=1).tolist() for q in QUANTILES},
    )
    if prompt is None:
        prompt = tokenizer.decode(data.validation.read(0, min(PROMPT_TOKENS, T // 2)))
    depths = sorted(set(depths)) or sample_depths(run.depth.mean, R)
    generator = Generator(run.model, trained.params, tokenizer)
    return Inspection(
        name=run.name,
        model=run.model,
        training=_training(trained),
        parameters=count_parameters(run.model),
        matrices=matrix_table(trained.params),
        mean_depth=run.depth.mean,
        tokens=len(text),
        loss=per_loop(seen["nats"], loops),
        gain=per_loop(seen["nats"] - seen["nats"][at_mean - 1], loops),
        kl=per_loop(seen["kl"][1:], loops[1:]),
        norm=per_loop(seen["norm"], loops),
        passage=Passage(
            [tokenizer.decode([token]) for token in text.target[shown]],
            loops[1:],
            seen["kl"][1:, shown],
        ),
        prompt=prompt,
        samples={
            depth: generator.generate(
                [prompt],
                recurrences=depth,
                max_tokens=max_tokens,
                sampling=Sampling(temperature=0.0),
                deepest=max(depths),
            )[0]
            for depth in depths
        },
    )


def inspect_loops(trained: Trained, recurrences: int) -> tuple[dict[str, np.ndarray], ScoredText]:
    """{"nats", "kl", "norm": (R, N)} of every loop and held-out token, and the text."""
    run = trained.run
    scorer = _scorer(run.model, recurrences, run.loss.chunk, trained.mesh)
    return score(trained, scorer, "loops")


def sample_depths(mean: float, deepest: int) -> list[int]:
    """1, half the mean, the mean and twice the mean, as far as the model was run."""
    return sorted({max(1, min(round(mean * part), deepest)) for part in (0.0, 0.5, 1.0, 2.0)})


@functools.lru_cache(maxsize=8)
def _scorer(model: ModelConfig, recurrences: int, chunk: int, mesh: Mesh) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask) -> ({name: (R, B, T)}, mask)."""

    def run(params, tokens_BT, mask_BT):
        observe = lambda state: {"norm": radial.norm(radial.full_precision(state))}
        h_RBTD, seen = unroll(model, params, tokens_BT[:, :-1], recurrences, observe)
        outputs = distributions(model, params, h_RBTD, tokens_BT[:, 1:], chunk)
        return {"nats": outputs["nats"], "kl": outputs["kl"], "norm": seen["norm"]}, mask_BT

    return jax.jit(run, out_shardings=parallel.replicated(mesh))


def _training(trained: Trained) -> dict[str, Any]:
    """What the summary says about the training, where it says it; how far an unfinished run is."""
    run = trained.run
    if not trained.folder.is_finished():
        return {
            "steps": f"{trained.step:,} of {run.steps:,}",
            "tokens": trained.step * run.batch_tokens,
            "seed": run.seed,
        }
    summary = trained.folder.read_summary()
    names = ("steps", "tokens", "train_flops", "loss", "bits_per_byte", "seed")
    return {name: summary[name] for name in names if summary.get(name) is not None}
