"""Measures the exit rules of a run on held-out text, for exits.json (adaptive/calibration.py).

One half of the windows fits the signals that need it and chooses thresholds, the other is scored
with them, every token really leaving when it exits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.adaptive.calibration import Calibration, Measured
from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.evaluation.exits.passes import at_depth, difference, run_pass, with_rule
from looped_jax.evaluation.exits.policies import calibrated_thresholds, exit_loops
from looped_jax.evaluation.scored.windows import score
from looped_jax.evaluation.trained import Trained
from looped_jax.model.accounting import forward_flops_per_token
from looped_jax.model.config import ModelConfig
from looped_jax.model.frozen import FrozenModel


def calibrate(
    trained: Trained,
    signals: Sequence[str],
    probe: Any,
    recurrences: int,
    calibration: range,
    scored: range,
) -> Calibration:
    """These signals at thresholds from 1.5 loops in the mean to all, and full depth beside them."""
    run, R = trained.run, recurrences
    T = run.data.sequence_length
    names = tuple(name for name in SIGNALS if name == "change" or name in signals)
    recorder = signal_recorder(run.model, names, R, trained.mesh)
    recorded, text = score(trained, recorder, "exits: signals", probe, windows=calibration)
    fitted = {} if probe is None else {"probe": probe}
    fitted["prior"] = fit_prior(recorded["change"], text.token, run.model)
    done_R1 = np.arange(1, R + 1)[:, None]
    recorded["prior"] = (fitted["prior"][text.token] / done_R1).astype(np.float32)
    tried = [
        Rule(name, threshold, most=R)
        for name in signals
        if SIGNALS[name].first < R
        for threshold in calibrated_thresholds(recorded[name])
    ]
    full = run_pass(trained, at_depth(trained, R), "", scored)
    flops = functools.partial(forward_flops_per_token, run.model, T)
    measured = []
    with trained.display.track(f"{run.name} exits: rules", len(tried), unit="rules") as progress:
        for rule in tried:
            program = with_rule(trained, rule, fitted.get(rule.signal), R)
            found = run_pass(trained, program, "", scored)
            excess, error = difference(found, full)
            cost = flops(found.loops) + found.loops * SIGNALS[rule.signal].flops(run.model)
            measured.append(
                Measured(
                    rule.signal, rule.threshold, found.loops, cost, found.loss, excess,
                    excess + 1.96 * error,
                )
            )  # fmt: skip
            progress.update(len(measured))
    tokens = int(full.tokens_W.sum())
    return Calibration(R, full.loss, flops(R), tokens, measured, fitted)


@functools.lru_cache(maxsize=8)
def signal_recorder(
    model: ModelConfig, signals: tuple[str, ...], recurrences: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask, probe) -> {signal: (R, B, T)}, mask.

    The prior is left out: it is fitted on what is recorded here.
    """
    names = [name for name in signals if name != "prior"]

    def record(params, tokens_BT, mask_BT, probe):
        frozen, inputs_BT = FrozenModel(model, params), tokens_BT[:, :-1]
        input_BTD = frozen.prelude(frozen.embed(inputs_BT))
        start = frozen.initial_state(input_BTD)
        fitted = {"probe": probe}
        memories = {
            name: SIGNALS[name].init(fitted.get(name), inputs_BT, start, model.vocab_size)
            for name in names
        }

        def loop(carried, index):
            state, memories = carried
            new = frozen.recur(state, input_BTD, index)
            values, kept = {}, {}
            for name in names:
                signal = SIGNALS[name]
                value, kept[name] = signal.step(
                    frozen.readout, fitted.get(name), state, new, memories[name]
                )
                values[name] = jnp.where(index + 1 < signal.first, jnp.inf, value)
            return (new, kept), values

        loops = jnp.arange(recurrences, dtype=jnp.int32)
        return jax.lax.scan(loop, (start, memories), loops)[1], mask_BT

    return jax.jit(record, out_shardings=parallel.replicated(mesh))


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
