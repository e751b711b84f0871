"""What slots cost and save in decoding: seconds of one thread, against rows in step.

    taskset -c 0 python -m tests.benchmarks.adaptive_decoding --out=tests/benchmarks/decoding.json
    taskset -c 0 python -m tests.benchmarks.adaptive_decoding --hops=runs/hops --out=hops.json

A model with random parameters; how many loops each token takes is given: a table by token id,
geometric with a mean of 4 of 12, so that the times depend on nothing that was trained. Cases:

  in step       16 rows, 12 loops a token
  slots, all    16 slots, a rule that never fires: what slots themselves cost
  slots, C = …  16 slots with the given loops, at several boundary sizes
  hops          trained models (configs/studies/hops.py) under the rule that adaptive.json has of
                them, against rows in step at 8 loops

The time bound of a case has all slots loop in every tick and all boundaries full: per token m t / S
+ b(C) / C with mean loops m, measured seconds t of a tick and b(C) of a boundary. Times are CPU
seconds, compilation left out; cases alternate, and the median counts.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from looped_jax import cli
from looped_jax.adaptive import boundary_size
from looped_jax.adaptive import slots as verbs
from looped_jax.adaptive.engine import Engine, Request, Size
from looped_jax.adaptive.exits import Exits
from looped_jax.adaptive.rule import Looks, Rule
from looped_jax.data.pipeline import validation_batches
from looped_jax.evaluate import opened
from looped_jax.evaluation.settings import Settings
from looped_jax.files import read_json, write_json
from looped_jax.generation.decoding import decode, prefill
from looped_jax.generation.sampling import Chooser, Sampling
from looped_jax.model.accounting import forward_flops_per_token
from looped_jax.model.config import ModelConfig
from looped_jax.progress import Display
from looped_jax.reading.opening import run_folders
from looped_jax.run_folder import RunFolder
from tests.model.tiny import random_params, tiny

R, MEAN, S, PER_SLOT = 12, 4, 16, 6
PROMPT, NEW, CAPACITY = 8, 24, 32
HOPS_S, HOPS_C, HOPS_TEXTS, TRIPLE = 32, 8, 128, 3  # a prompt is one solved triple
NO_END = -1
CLOCK, PER_TOKEN = "CPU seconds of the process", "seconds_per_token"
MODEL = tiny(
    width=256, heads=4, head_dim=64, mlp_hidden=1024, vocab_size=2048, max_length=CAPACITY,
    core_layers=2, recurrences=R, max_recurrences=R,
)  # fmt: skip
SAMPLING = Sampling()


class Texts(NamedTuple):
    """What is decoded: a model, prompts, the loop at which every token exits, texts at a time."""

    model: ModelConfig
    params: Any
    requests: list[Request]
    most: int
    capacity: int
    rows: int


def main(_: list[str]) -> None:
    given = flags.FLAGS
    if given.hops:
        rules = read_json(Path(__file__).with_name("adaptive.json"))["cases"]
        table = {}
        for path in run_folders(Path(given.hops)):
            name = RunFolder(path).read_config()["name"]
            table[name] = hops(path, Rule.parse(rules[name]["rule"]), given.repeats)
            print(json.dumps({name: table[name]}), flush=True)
        write_json(Path(given.out), {"clock": CLOCK, "slots": HOPS_S, "cases": table})
        return
    random_parameters(Path(given.out), given.repeats)


def hops(workdir: Path, rule: Rule, repeats: int) -> dict[str, float]:
    """CPU seconds a token in slots with the rule, and in step at full depth; their ratio."""
    with opened(workdir, Display(), Settings()) as run:
        model, T = run.run.model, run.run.data.sequence_length
        batches = validation_batches(run.data, sequence_length=T, batch_size=HOPS_TEXTS)
        windows, keys = next(iter(batches)), SAMPLING.keys(range(HOPS_TEXTS))
        requests = [
            Request(row[:TRIPLE], T - TRIPLE, key)
            for row, key in zip(windows["tokens"].astype(np.int32), keys, strict=True)
        ]
        texts = Texts(model, run.params, requests, model.recurrences, T, HOPS_S)
        exits = Exits(np.float32(rule.threshold), np.int32(model.recurrences))
        rows = []
        for i in range(repeats + 1):
            slots = in_slots(texts, rule.looks, exits, HOPS_C)
            step = in_step(texts)
            if i:
                rows.append(slots | {"of_in_step": slots[PER_TOKEN] / step[PER_TOKEN]})
        return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}


def random_parameters(out: Path, repeats: int) -> None:
    """All cases of the model with random parameters."""
    params, rng = random_params(MODEL), np.random.default_rng(0)
    loops_V = np.minimum(rng.geometric(1 / MEAN, MODEL.vocab_size), R).astype(np.float32)
    given = (Looks("prior", 1, 1), Exits(np.float32(1), np.int32(R), jnp.asarray(loops_V)))
    never = (Rule.parse("change:-1").looks, Exits(np.float32(-1), np.int32(R)))
    keys = SAMPLING.keys(range(S * PER_SLOT))
    requests = [
        Request(rng.integers(0, MODEL.vocab_size, PROMPT).astype(np.int32), NEW, key)
        for key in keys
    ]
    texts = Texts(MODEL, params, requests, R, CAPACITY, S)
    sizes = boundary_size.candidates(S)
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "in step": lambda: in_step(texts),
        "slots, all": lambda: in_slots(texts, *never, sizes[1]),
    } | {
        f"slots, C = {C}": lambda C=C: in_slots(texts, *given, C)  # type: ignore[misc]
        for C in sizes
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for i in range(repeats + 1):  # the first round compiles
        for name, case in cases.items():
            measured = case()
            print(f"round {i} of {repeats}, {name}: {measured}", file=sys.stderr, flush=True)
            if i:
                found[name].append(measured)
    table = {
        name: {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
        for name, rows in found.items()
    }
    write_json(out, summary(params, given, table))
    print(json.dumps(table, indent=1))


def summary(params, given: tuple[Looks, Exits], table: dict[str, dict[str, float]]) -> dict:
    """Ratios to rows in step and to the bounds; the boundary size that measured times choose."""
    looks, exits = given
    slots = verbs.idle_slots(MODEL, looks, S, R, CAPACITY, exits.fitted)
    tick, boundary = boundary_size.measure(
        MODEL, looks, chooser(MODEL.vocab_size), NO_END, params, slots, exits, SAMPLING.knobs()
    )
    sizes = sorted(boundary)
    of_boundary = lambda C: float(np.interp(C, sizes, [boundary[each] for each in sizes]))
    flops = lambda loops: forward_flops_per_token(MODEL, PROMPT + NEW, loops)
    full = table["in step"]["seconds_per_token"]
    for name, row in table.items():
        row["of_in_step"] = row["seconds_per_token"] / full
        if name.startswith("slots, C"):
            C = int(name.rpartition(" ")[2])
            bound = row["mean_loops"] * tick / S + of_boundary(C) / C
            row["of_time_bound"] = bound / row["seconds_per_token"]
            row["of_flop_bound"] = (
                full * flops(row["mean_loops"]) / flops(R) / row["seconds_per_token"]
            )
    chosen = boundary_size.cheapest(S, table[f"slots, C = {S // 8}"]["mean_loops"], tick, boundary)
    return {
        "model": "1 - 2 x 12 - 1 layers of width 256, 2048 ids, random parameters",
        "slots": S, "requests": S * PER_SLOT, "prompt": PROMPT, "new": NEW,
        "device": jax.devices()[0].device_kind,
        "clock": f"{CLOCK}; tick and boundary in wall seconds",
        "tick_seconds": tick, "boundary_seconds": {str(C): boundary[C] for C in sizes},
        "chosen_boundary": chosen, "cases": table,
    }  # fmt: skip


def in_slots(texts: Texts, looks: Looks, exits: Exits, boundary: int) -> dict[str, float]:
    prompt = len(texts.requests[0].prompt)
    engine = Engine(
        texts.model, texts.params, looks, exits,
        Size(texts.rows, boundary, texts.most, texts.capacity, prompt),
        chooser(texts.model.vocab_size), SAMPLING.knobs(), NO_END,
    )  # fmt: skip
    began = time.process_time()
    loops = [drawn.loops for drawn in engine.run(texts.requests)]
    seconds = time.process_time() - began
    return {
        PER_TOKEN: seconds / len(loops),
        "mean_loops": float(np.mean(loops)),
        "occupancy": engine.busy / (engine.ticks * texts.rows),
    }


def in_step(texts: Texts) -> dict[str, float]:
    model, params, requests = texts.model, texts.params, texts.requests
    fill, step = prefill(model, texts.most, texts.capacity), decode(model, texts.most)
    choose = compiled_chooser(model.vocab_size)
    knobs, r = SAMPLING.knobs(), jnp.int32(texts.most)
    prompt, new = len(requests[0].prompt), requests[0].max_tokens
    began = time.process_time()
    for first in range(0, len(requests), texts.rows):
        rows = requests[first : first + texts.rows]
        keys = jnp.stack([request.key for request in rows])
        tokens = np.stack([request.prompt for request in rows])
        logits, cache = fill(params, tokens, np.full(texts.rows, prompt, np.int32), keys, r)
        token = choose(logits, cache.length, keys, knobs)
        for _ in range(new - 1):
            logits, cache = step(params, cache, token, keys, r)
            token = choose(logits, cache.length, keys, knobs)
        jax.block_until_ready(token)
    seconds = time.process_time() - began
    return {PER_TOKEN: seconds / (len(requests) * new), "mean_loops": float(texts.most)}


@functools.lru_cache
def chooser(vocab_size: int) -> Chooser:
    return Chooser(vocab_size)


@functools.lru_cache
def compiled_chooser(vocab_size: int) -> Callable[..., jax.Array]:
    return jax.jit(chooser(vocab_size).__call__)


if __name__ == "__main__":
    flags.DEFINE_string("hops", None, "Folder of the finished runs of configs/studies/hops.py.")
    flags.DEFINE_string("out", "adaptive_decoding.json", "Where the JSON goes.")
    flags.DEFINE_integer("repeats", 5, "Rounds over all cases that count.")
    cli.run(main)
