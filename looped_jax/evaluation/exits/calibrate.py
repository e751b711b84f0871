"""Measures the exit rules of a run on held-out text, for exits.json (adaptive/calibration.py).

One half of the windows fits the signals that need it and chooses thresholds, the other is scored
with them, every token really leaving when it exits.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from looped_jax.adaptive.calibration import Calibration, Measured
from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.signals import SIGNALS, Probe, flops_with_exits
from looped_jax.evaluation.exits.passes import at_depth, difference, run_pass, with_rule
from looped_jax.evaluation.exits.policies import calibrated_thresholds, exit_loops
from looped_jax.evaluation.trained import Trained
from looped_jax.model.accounting import forward_flops_per_token
from looped_jax.model.config import ModelConfig


def calibrate(
    trained: Trained,
    signals: Sequence[str],
    recorded: dict[str, np.ndarray],
    tokens_N: np.ndarray,
    probe: Probe,
    recurrences: int,
    scored: range,
    uniform_losses: Sequence[float],
) -> Calibration:
    """These signals at thresholds from 1.5 loops in the mean to all, and full depth beside them.

    Args:
      recorded: signals (R or more, N) of text that is not scored; `change`, and those asked for.
      tokens_N: its input tokens.
      recurrences: R, the loop at which every token exits.
      uniform_losses: nats a token after 1, 2, … R or more loops of all, on the text that is scored.
    """
    run, R = trained.run, recurrences
    T = run.data.sequence_length
    recorded = {name: values[:R] for name, values in recorded.items()}
    fitted: dict[str, Any] = {"probe": probe}
    fitted["prior"] = fit_prior(recorded["change"], tokens_N, run.model)
    done_R1 = np.arange(1, R + 1)[:, None]
    recorded["prior"] = (fitted["prior"][tokens_N] / done_R1).astype(np.float32)
    tried = [
        Rule(name, threshold, most=R)
        for name in signals
        if SIGNALS[name].first < R
        for threshold in calibrated_thresholds(recorded[name])
    ]
    full = run_pass(trained, at_depth(trained, R), "", scored)
    measured = []
    with trained.display.track(f"{run.name} exits: rules", len(tried), unit="rules") as progress:
        for rule in tried:
            program = with_rule(trained, rule, fitted.get(rule.signal), R)
            found = run_pass(trained, program, "", scored)
            excess, error = difference(found, full)
            cost = flops_with_exits(run.model, T, found.loops, rule.signal)
            measured.append(
                Measured(
                    rule.signal, rule.threshold, found.loops, cost, found.loss, excess,
                    excess + 1.96 * error,
                )
            )  # fmt: skip
            progress.update(len(measured))
    tokens = int(full.tokens_W.sum())
    full_flops = forward_flops_per_token(run.model, T, R)
    uniform = [float(loss) for loss in uniform_losses[:R]]
    return Calibration(R, full.loss, full_flops, uniform, tokens, measured, fitted)


def fit_prior(change_RN: np.ndarray, token_N: np.ndarray, model: ModelConfig) -> np.ndarray:
    """Loops that tokens of each id take in the mean, (V,) float32.

    Of exits by `change`, at the threshold whose mean comes nearest to the square root of R; an id
    counts with one more token that took as many loops as all in the mean.
    """
    target = len(change_RN) ** 0.5
    exits = [exit_loops(change_RN, x) for x in calibrated_thresholds(change_RN)]
    loop_N = min(exits, key=lambda loop_N: abs(loop_N.mean() - target))
    sums_V = np.bincount(token_N, loop_N, model.vocab_size) + loop_N.mean()
    return (sums_V / (np.bincount(token_N, minlength=model.vocab_size) + 1)).astype(np.float32)
