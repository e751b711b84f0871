"""Depth allocated token by token on a frozen model: what exit policies save, and what they lose."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from looped_jax.adaptive import exits as engine
from looped_jax.adaptive.batch import NEVER
from looped_jax.adaptive.calibration import FILE
from looped_jax.adaptive.rule import INJECTIONS, Rule
from looped_jax.adaptive.signals import SIGNALS, Probe
from looped_jax.errors import UserError
from looped_jax.evaluation import depth
from looped_jax.evaluation.exits.calibrate import calibrate
from looped_jax.evaluation.exits.frontier import Frontier, Point, flops_of_exits
from looped_jax.evaluation.exits.passes import exit_scorer
from looped_jax.evaluation.exits.policies import (
    Policy,
    argmax_changes,
    choose,
    costs_per_token,
    exit_loops,
    shown_threshold,
    signals_of,
    thresholds_of,
)
from looped_jax.evaluation.exits.probe import FittedProbe, fit_probe, ranking_quality
from looped_jax.evaluation.exits.recorder import signal_recorder
from looped_jax.evaluation.scored.bootstrap import Bootstrap
from looped_jax.evaluation.scored.tables import write_parquet
from looped_jax.evaluation.scored.trajectory import Loops, loop_scorer
from looped_jax.evaluation.scored.windows import ScoredText, count_windows, score
from looped_jax.evaluation.trained import Trained
from looped_jax.model.config import ModelConfig

TABLE = "exits.parquet"

# What exited tokens show to those that go on. "carry": the keys and values of their last loop, as
# in scoring and decoding, so that an exited token costs nothing. "full_depth": they are seen as if
# they went on, and only their output is that of their exit loop; a bound that no machine gains
# from, and what studies on recorded trajectories measure.
CARRIES = ("carry", "full_depth")


def exits_suite(trained: Trained) -> dict[str, Any]:
    """Loss, loops and FLOPs of every policy, threshold and carry, on the same text.

    The first half of the windows fits the probe and chooses thresholds, the second half is scored.
    Rules that can be run are measured as they run and kept in exits.json (see calibrate.py).
    The summary's part holds points and comparisons with their intervals; exits.parquet in the run
    folder has a row for each point and window (sums over its tokens).
    """
    run, settings = trained.run, trained.settings
    R = settings.chosen_recurrences(run)
    policies = choose(settings.policies, R)
    carries = choose_carries(settings.carries, run.model)
    calibration, scored = split(trained)
    fitted = fit_probe(trained, calibration, R)
    names = recorded_signals(settings.policies)
    record = signal_recorder(run.model, names, R, trained.mesh)
    outputs = loop_scorer(run.model, R, run.loss.chunk, trained.mesh)
    recorded_before, before = score(
        trained, record, "exits: calibration", fitted.probe, windows=calibration
    )
    loops_before, _ = score(trained, outputs, "exits: calibration", windows=calibration)
    recorded, _ = score(trained, record, "exits: signals", fitted.probe, windows=scored)
    loops, text = score(trained, outputs, "exits: full depth", windows=scored)
    calibration_signals = signals_of(loops_before, recorded_before)
    signals = signals_of(loops, recorded)
    tried = [
        (policy, threshold)
        for policy in policies
        for threshold in thresholds_of(
            policy, settings.epsilons, calibration_signals[policy.signal]
        )
    ]
    points = []
    total = len(tried) * len(carries)
    with trained.display.track(f"{run.name} exits", total, unit="points") as progress:
        for policy, threshold in tried:
            loop_N = exit_loops(signals[policy.signal], threshold)
            for carry in carries:
                if carry == "full_depth" or policy.name == "uniform":
                    exits = _recorded(loops, loop_N)
                elif policy.is_rule:
                    rule = Rule(policy.signal, threshold)
                    exits = _run(trained, rule, fitted.probe, R, scored)
                else:
                    exits = _run_given(trained, text, loop_N, R, scored)
                points.append(_point(trained, policy, carry, threshold, exits, loops))
                progress.update(len(points))
    write_parquet(trained.out / TABLE, window_table(points, text))
    bootstrap = Bootstrap(text, settings.resamples, settings.seed)
    frontier = Frontier(points, loops.nats[-1], bootstrap)
    T = run.data.sequence_length
    calibrated = None
    signals_run = [name for name in SIGNALS if not settings.policies or name in settings.policies]
    if run.model.injection in INJECTIONS and signals_run:
        calibrated = calibrate(
            trained, signals_run, recorded_before, before.token, fitted.probe,
            settings.rule_recurrences(run), scored, loops.nats.mean(axis=1),
        )  # fmt: skip
        if jax.process_index() == 0:
            calibrated.write(trained.folder.path)
    return {
        "training": depth.training(trained),
        "recurrences": R,
        "calibration_windows": [calibration.start, calibration.stop],
        "scored_windows": [scored.start, scored.stop],
        "tokens": len(text),
        "table": TABLE,
        "bootstrap": bootstrap.describe(),
        "policies": {policy.name: policy.about for policy in policies},
        "carries": carries,
        "costs": costs_per_token(run.model, T)
        | {"tests": {p.name: p.test_flops_per_token(run.model, T) for p in policies}},
        "rules": FILE if calibrated else None,
        "probe": _probe_json(fitted, loops, recorded["probe"]),
        "points": frontier.to_json(),
        "at_equal_quality": frontier.at_equal_quality(),
    }


def choose_carries(names: Sequence[str], model: ModelConfig) -> list[str]:
    """The carries of these names, or all that the model supports.

    Raises:
      UserError: an unknown name, or "carry" with hyperconnections, whose core reads lanes that
        mix differently in every recurrence.
    """
    supported = [name for name in CARRIES if name != "carry" or model.injection != "hyperconnect"]
    for name in names:
        if name not in CARRIES:
            raise UserError(f"carry {name!r}; allowed: {', '.join(CARRIES)}")
        if name not in supported:
            raise UserError(
                f"carry {name!r}; allowed with hyperconnections: {', '.join(supported)}"
            )
    return list(names or supported)


def split(trained: Trained) -> tuple[range, range]:
    """(windows for the probe and the thresholds, windows that are scored): the two halves."""
    windows = count_windows(trained)
    if windows < 2:
        raise UserError(
            f"exits of {trained.run.name}: 1 window of held-out text; allowed: 2 or more, one "
            "part to choose thresholds on and one to score"
        )
    return range(windows // 2), range(windows // 2, windows)


def recorded_signals(policies: Sequence[str]) -> tuple[str, ...]:
    """Signals to record for these policies (none: all) and their rules.

    The prior is fitted on what is recorded of `change`; a head after every loop is not cheap.
    """
    needs_head = not policies or "head_kl" in policies
    return ("change", "accel", "probe") + (("head_kl",) if needs_head else ())


def window_table(points: Sequence[Point], text: ScoredText) -> pd.DataFrame:
    """Sums over the tokens of each window: tokens, loops, nats, agreements, FLOPs."""
    windows, index_N = np.unique(text.window, return_inverse=True)
    total = lambda values_N: np.bincount(index_N, values_N, len(windows))
    parts = []
    for point in points:
        part = pd.DataFrame(
            {
                "window": windows,
                "tokens": np.bincount(index_N),
                "loops": total(point.loop),
                "nats": total(point.nats),
                "agrees": total(point.agrees),
                "flops": total(point.flops),
                "test_flops": total(point.test_flops),
            }
        )
        part.insert(0, "policy", point.policy.name)
        part.insert(1, "carry", point.carry)
        part.insert(2, "threshold", shown_threshold(point.policy, point.threshold))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


class Exits(NamedTuple):
    """What became of each of N tokens: exit loop, nats of its output, its most likely token."""

    loop: np.ndarray
    nats: np.ndarray
    argmax: np.ndarray


def _recorded(loops: Loops, loop_N: np.ndarray) -> Exits:
    """What tokens would have said at their exit loops on the trajectory of full depth."""
    tokens = np.arange(len(loop_N))
    return Exits(loop_N, loops.nats[loop_N - 1, tokens], loops.argmax[loop_N - 1, tokens])


def _run(trained: Trained, rule: Rule, probe: Probe, recurrences: int, windows: range) -> Exits:
    """Exits by a signal of the token's own, decided while tokens leave."""
    run, B, T = trained.run, trained.run.evaluation.batch_size, trained.run.data.sequence_length
    program = exit_scorer(run.model, rule.looks, run.loss.chunk, trained.mesh)
    fitted = probe if rule.signal == "probe" else None
    exits = engine.Exits(np.float32(rule.threshold), np.int32(recurrences), fitted)
    scored, _ = score(trained, program, "", np.zeros((B, T), np.int32), exits, windows=windows)
    return Exits(scored.loops, scored.nats, scored.argmax)


def _run_given(
    trained: Trained, text: ScoredText, loop_N: np.ndarray, recurrences: int, windows: range
) -> Exits:
    """Exits after given loops."""
    run, T = trained.run, trained.run.data.sequence_length
    program = exit_scorer(run.model, NEVER.looks, run.loss.chunk, trained.mesh)
    exits = engine.Exits(np.float32(NEVER.threshold), np.int32(recurrences))
    forced_WT = np.zeros((windows.stop, T), np.int32)
    forced_WT[text.window, text.position] = loop_N
    scored, _ = score(trained, program, "", exits, windows=windows, given_WT=forced_WT)
    return Exits(scored.loops, scored.nats, scored.argmax)


def _point(
    trained: Trained,
    policy: Policy,
    carry: str,
    threshold: float,
    exits: Exits,
    loops: Loops,
) -> Point:
    run = trained.run
    flops_N, test_flops_N = flops_of_exits(
        policy, carry, run.model, run.data.sequence_length, len(loops.nats), exits.loop
    )
    agrees_N = exits.argmax == loops.argmax[-1]
    return Point(policy, carry, threshold, exits.loop, exits.nats, agrees_N, flops_N, test_flops_N)


def _probe_json(fitted: FittedProbe, loops: Loops, probe_RN: np.ndarray) -> dict[str, Any]:
    """How the probe was fitted, and how well it ranks the pairs of the scored text."""
    quality = ranking_quality(probe_RN[:-1].ravel(), argmax_changes(loops.argmax)[:-1].ravel())
    return {
        "examples": fitted.examples,
        "share_changing": fitted.share_changing,
        "scored_area_under_roc": quality if np.isfinite(quality) else None,
    }
