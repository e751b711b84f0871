"""Whether depth by token saves time when text is scored: CPU seconds, against the FLOPs it saves.

    NPROC=1 python -m tests.benchmarks.adaptive --out=tests/benchmarks/adaptive.json
    NPROC=1 python -m tests.benchmarks.adaptive --workdir=runs/elastic/runs/… --hops=runs/hops

Random weights with given exits show what packing reaches of the FLOP bound; --workdir adds exits by
`change` of a trained model, --hops the task whose answers need different depths. Every case calls
its programs in turn and takes the median of 7; compiling is apart. Seconds are of the process on
one thread; ratios repeat to about 1 %, absolute times move with the machine's load. The same
command, run again, measures the cases that --out does not have yet.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from configs import elastic_depth
from looped_jax import cli
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.scoring import scorer
from looped_jax.adaptive.signals import flops_with_exits
from looped_jax.data.pipeline import validation_batches
from looped_jax.evaluate import opened
from looped_jax.evaluation.settings import Settings
from looped_jax.files import read_json, write_json
from looped_jax.model.accounting import forward_flops_per_token
from looped_jax.model.boxes import unboxed
from looped_jax.model.config import ModelConfig
from looped_jax.progress import Display
from looped_jax.reading.opening import run_folders
from looped_jax.run_folder import RunFolder
from looped_jax.training.state import init_params
from looped_jax.training.validation import window_scorer

REPEATS = 7
CHUNK = 1024
NEVER = Rule("change", -1.0)

Programs = dict[str, Callable[[], Any]]


def main(_: list[str]) -> None:
    given = flags.FLAGS
    cases: dict[str, Callable[[], Any]] = {"replay": lambda: replay(mean=4.0, stragglers=0.05)}
    if given.workdir:
        cases["trained"] = lambda: trained(Path(given.workdir))
    for path in run_folders(Path(given.hops)) if given.hops else []:
        cases[RunFolder(path).read_config()["name"]] = lambda path=path: hops(path)
    out = Path(given.out)
    report: dict[str, Any] = {
        "what": "CPU seconds of one process, alternating, median of 7, compilation apart",
        "threads": os.environ.get("NPROC", "all"),
        "machine": given.machine,
        "jax": jax.__version__,
        "cases": read_json(out)["cases"] if out.exists() else {},
    }
    for name, case in cases.items():
        if name not in report["cases"]:
            report["cases"][name] = case()
            write_json(out, report)
            print(json.dumps({name: report["cases"][name]}, indent=1), flush=True)


def replay(mean: float, stragglers: float) -> dict[str, Any]:
    """Given exits at random weights: geometric ones, and some tokens at full depth."""
    R, T, B = 12, 256, 4
    tree = elastic_depth.model(
        vocab_size=2048, width=256, heads=4, mlp_hidden=768, layers=(1, 2, 1), mean=R, max_length=T
    )
    tree.initial_state, tree.initial_state_std = "zeros", 0.0
    model = ModelConfig.from_tree(tree.to_dict())
    params = jax.tree.map(jnp.asarray, unboxed(init_params(model, 0)))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, model.vocab_size, (B, T + 1)).astype(np.int32)
    score, uniform = programs(model, params, tokens)
    geometric = np.minimum(1 + rng.geometric(1 / (mean - 1), (B, T)), R)
    few = np.maximum(1, rng.poisson(mean - stragglers * R, (B, T)))
    few = np.minimum(np.where(rng.random((B, T)) < stragglers, R, few), R)
    run = {
        "full depth": uniform(R),
        "never fires": score(NEVER, R),
        "geometric": score(NEVER, R, geometric),
        "stragglers": score(NEVER, R, few),
    }
    seconds, compiling = measured(run)
    full = seconds["full depth"]
    found: dict[str, Any] = {
        "model": "1 - 2 x 12 - 1, width 256, T = 256, B = 4",
        "full_depth_seconds": full,
        "compile_seconds": compiling,
        "never_fires_over_full_depth": seconds["never fires"] / full,
    }
    for name, exits in (("geometric", geometric), ("stragglers", few)):
        found[name] = against_bound(model, T, R, float(exits.mean()), seconds[name] / full)
    return found


def trained(workdir: Path) -> dict[str, Any]:
    """Exits by `change` of a trained model, at thresholds for few and for many loops."""
    with opened(workdir, Display(), Settings()) as run:
        model, R = run.run.model, run.run.model.max_recurrences
        T = run.run.data.sequence_length
        batch = next(iter(validation_batches(run.data, sequence_length=T, batch_size=32)))
        score, uniform = programs(model, run.params, batch["tokens"])
        found: dict[str, Any] = {"run": run.run.name, "recurrences": R}
        for target in (0.1, 0.6):
            rule, loops = threshold_for(score, R, target * R)
            run_ = {"full depth": uniform(R), "exits": score(rule, R)}
            seconds, _ = measured(run_)
            ratio = seconds["exits"] / seconds["full depth"]
            found[str(rule)] = against_bound(model, T, R, loops, ratio)
        return found


def hops(workdir: Path) -> dict[str, Any]:
    """The cheapest threshold within 0.01 nats of 8 loops, chosen on other text, and its time."""
    with opened(workdir, Display(), Settings()) as run:
        model, R = run.run.model, run.run.model.recurrences
        T = run.run.data.sequence_length
        batches = list(validation_batches(run.data, sequence_length=T, batch_size=64))
        calibration, test = batches[0], batches[1]
        loss = lambda scored, batch: float(np.asarray(scored.nats)[batch["mask"]].mean())

        score, _ = programs(model, run.params, calibration["tokens"])
        full = loss(score(NEVER, R)(), calibration)
        chosen = NEVER
        for threshold in np.geomspace(1e-3, 1.5, 24):
            rule = Rule("change", float(threshold))
            if loss(score(rule, R)(), calibration) - full <= 0.01:
                chosen = rule
        score, uniform = programs(model, run.params, test["tokens"])
        exits = jax.device_get(score(chosen, R)())
        accuracy = (exits.argmax == test["tokens"][:, 1:])[test["mask"]].mean()
        depths = {depth: loss(score(NEVER, depth)(), test) for depth in range(1, R + 1)}
        k = test["tokens"][:, :-1][test["mask"]]
        seconds, _ = measured(
            {"exits": score(chosen, R)} | {f"uniform {d}": uniform(d) for d in range(1, R + 1)}
        )
        return {
            "run": run.run.name,
            "rule": str(chosen),
            "mean_loops": float(exits.loops.mean()),
            "answers_nats": loss(exits, test),
            "answers_right": float(accuracy),
            "nats_by_uniform_depth": depths,
            "correlation_of_exit_and_hops": float(np.corrcoef(exits.loops[test["mask"]], k)[0, 1]),
            "seconds_over_uniform": {
                name: seconds["exits"] / value for name, value in seconds.items() if name != "exits"
            },
        }


def programs(model: ModelConfig, params: Any, tokens: np.ndarray):
    """(score(rule, R, exits) and uniform(depth), each giving a call without arguments)."""
    B, T = tokens.shape[0], tokens.shape[1] - 1
    lengths, mask = np.full(B, T, np.int32), np.ones((B, T), bool)
    keys = jax.vmap(jax.random.key)(jnp.arange(B))
    program = scorer(model, NEVER.looks, CHUNK)
    plain = window_scorer(model, CHUNK, jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor")))

    def score(rule: Rule, recurrences: int, forced: np.ndarray | None = None):
        exits = Exits(jnp.float32(rule.threshold), jnp.int32(recurrences))
        forced = None if forced is None else forced.astype(np.int32)
        return lambda: program(params, tokens, lengths, keys, exits, forced)

    def uniform(depth: int):
        return lambda: plain(params, tokens, mask, mask.astype(np.int32), np.int32(depth))

    return score, uniform


def threshold_for(score, recurrences: int, loops: float) -> tuple[Rule, float]:
    """The rule on `change` whose mean loops come nearest to `loops`, and those."""
    low, high = 1e-8, 2.0
    for _ in range(14):
        rule = Rule("change", float(np.sqrt(low * high)))
        mean = float(np.mean(jax.device_get(score(rule, recurrences)()).loops))
        low, high = (rule.threshold, high) if mean > loops else (low, rule.threshold)
    return rule, mean


def measured(programs: Programs) -> tuple[dict[str, float], dict[str, float]]:
    """(median CPU seconds, CPU seconds of the first call) of each, called in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPEATS + 1):
        for name, program in programs.items():
            start = time.process_time()
            jax.block_until_ready(program())
            seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return medians, {name: values[0] for name, values in seconds.items()}


def against_bound(model: ModelConfig, T: int, R: int, loops: float, ratio: float) -> dict[str, Any]:
    """What of the saving in FLOPs is one in time."""
    bound = flops_with_exits(model, T, loops, "change") / forward_flops_per_token(model, T, R)
    return {
        "mean_loops": loops,
        "seconds_over_full_depth": ratio,
        "flops_over_full_depth": bound,
        "reached_of_bound": bound / ratio,
    }


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder of a finished elastic run.")
    flags.DEFINE_string("hops", None, "Folder of the finished runs of configs/studies/hops.py.")
    flags.DEFINE_string("machine", "", "What else ran on the machine, to stand in the file.")
    flags.DEFINE_string("out", "adaptive.json", "JSON file that cases are added to.")
    cli.run(main)
