"""Depth allocated token by token on a frozen model: what exit policies save, and what they lose."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.sharding import Mesh

from looped_jax import parallel
from looped_jax.adaptive.calibration import FILE
from looped_jax.adaptive.rule import INJECTIONS
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.errors import UserError
from looped_jax.evaluation import depth
from looped_jax.evaluation.exits.calibrate import calibrate
from looped_jax.evaluation.exits.frontier import Frontier, Point, flops_of_exits
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
from looped_jax.evaluation.exits.probe import FittedProbe, Probe, fit_probe, ranking_quality
from looped_jax.evaluation.exits.running import CARRIES, Exits, exit_scorer
from looped_jax.evaluation.scored.bootstrap import Bootstrap
from looped_jax.evaluation.scored.tables import write_parquet
from looped_jax.evaluation.scored.trajectory import Loops, distributions, unroll
from looped_jax.evaluation.scored.windows import ScoredText, count_windows, score
from looped_jax.evaluation.trained import Trained
from looped_jax.model.config import ModelConfig

TABLE = "exits.parquet"


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
    scorer = signal_scorer(run.model, R, run.loss.chunk, trained.mesh)
    observe = functools.partial(score, trained, scorer)
    before, _ = observe("exits: calibration", fitted.probe, windows=calibration)
    (loops, probe_RN), text = observe("exits: full depth", fitted.probe, windows=scored)
    calibration_signals, signals = signals_of(*before), signals_of(loops, probe_RN)
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
            for carry in carries:
                if carry == "full_depth" or policy.name == "uniform":
                    exits = _recorded(loops, exit_loops(signals[policy.signal], threshold))
                else:
                    exits = _run(trained, policy, R, fitted.probe, threshold, scored)
                points.append(_point(trained, policy, carry, threshold, exits, loops))
                progress.update(len(points))
    write_parquet(trained.out / TABLE, window_table(points, text))
    bootstrap = Bootstrap(text, settings.resamples, settings.seed)
    frontier = Frontier(points, loops.nats[-1], bootstrap)
    T = run.data.sequence_length
    calibrated = None
    signals_run = [name for name in SIGNALS if not settings.policies or name in settings.policies]
    if run.model.injection in INJECTIONS and signals_run:
        most = settings.rule_recurrences(run)
        calibrated = calibrate(trained, signals_run, fitted.probe, most, calibration, scored)
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
        "probe": _probe_json(fitted, loops, probe_RN),
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


@functools.lru_cache(maxsize=8)
def signal_scorer(
    model: ModelConfig, recurrences: int, chunk: int, mesh: Mesh
) -> Callable[..., Any]:
    """The compiled (params, tokens (B, T + 1), mask, probe) -> (Loops, probe's logits), mask."""

    def measure(params, tokens_BT, mask_BT, probe: Probe):
        look = lambda state: {"probe": probe.logits(state)}
        h_RBTD, motion = unroll(model, params, tokens_BT[:, :-1], recurrences, look)
        logits_RBT = motion.pop("probe")
        outputs = distributions(model, params, h_RBTD, tokens_BT[:, 1:], chunk)
        return (Loops(**outputs, **motion), logits_RBT), mask_BT

    return jax.jit(measure, out_shardings=parallel.replicated(mesh))


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


def _recorded(loops: Loops, loop_N: np.ndarray) -> Exits:
    """What tokens would have said at their exit loops on the trajectory of full depth."""
    tokens = np.arange(len(loop_N))
    return Exits(loop_N, loops.nats[loop_N - 1, tokens], loops.argmax[loop_N - 1, tokens])


def _run(
    trained: Trained,
    policy: Policy,
    recurrences: int,
    probe: Probe,
    threshold: float,
    windows: range,
) -> Exits:
    run = trained.run
    scorer = exit_scorer(run.model, policy.name, recurrences, run.loss.chunk, trained.mesh)
    exits, _ = score(trained, scorer, "", probe, np.float32(threshold), windows=windows)
    return exits


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
