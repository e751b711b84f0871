"""What slots cost and save in decoding: seconds of one thread, against rows in step.

    taskset -c 0 python -m tests.benchmarks.adaptive_decoding --out=adaptive_decoding.json

A model with random parameters; how many loops each token takes is given: a table by token id,
geometric with a mean of 4 of 12, so that the times depend on nothing that was trained. Cases:

  in step       16 rows, 12 loops a token
  slots, all    16 slots, a rule that never fires: what slots themselves cost
  slots, C = …  16 slots with the given loops, at several boundary sizes

The time bound of a case has all slots loop in every tick and all boundaries full: per token m t / S
+ b(C) / C with mean loops m, measured seconds t of a tick and b(C) of a boundary. Times are CPU
seconds, compilation left out; cases alternate, and the median counts.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
from looped_jax.files import write_json
from looped_jax.generation.decoding import decode, prefill
from looped_jax.generation.sampling import Chooser, Sampling
from looped_jax.model.accounting import forward_flops_per_token
from tests.model.tiny import random_params, tiny

R, MEAN, S, PER_SLOT = 12, 4, 16, 6
PROMPT, NEW, CAPACITY = 8, 24, 32
NO_END = -1
MODEL = tiny(
    width=256, heads=4, head_dim=64, mlp_hidden=1024, vocab_size=2048, max_length=CAPACITY,
    core_layers=2, recurrences=R, max_recurrences=R,
)  # fmt: skip
CHOOSE, SAMPLING = Chooser(MODEL.vocab_size), Sampling()
choose_compiled = jax.jit(CHOOSE.__call__)


def main(_: list[str]) -> None:
    repeats = flags.FLAGS.repeats
    params, rng = random_params(MODEL), np.random.default_rng(0)
    loops_V = np.minimum(rng.geometric(1 / MEAN, MODEL.vocab_size), R).astype(np.float32)
    given = (Looks("prior", 1, 1), Exits(np.float32(1), np.int32(R), jnp.asarray(loops_V)))
    never = (Rule.parse("change:-1").looks, Exits(np.float32(-1), np.int32(R)))
    keys = SAMPLING.keys(range(S * PER_SLOT))
    requests = [
        Request(rng.integers(0, MODEL.vocab_size, PROMPT).astype(np.int32), NEW, key)
        for key in keys
    ]
    sizes = boundary_size.candidates(S)
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "in step": lambda: in_step(params, requests),
        "slots, all": lambda: in_slots(params, requests, *never, sizes[1]),
    } | {
        f"slots, C = {C}": lambda C=C: in_slots(params, requests, *given, C)  # type: ignore[misc]
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
    write_json(Path(flags.FLAGS.out), summary(params, given, table))
    print(json.dumps(table, indent=1))


def summary(params, given: tuple[Looks, Exits], table: dict[str, dict[str, float]]) -> dict:
    """Ratios to rows in step and to the bounds; the boundary size that measured times choose."""
    looks, exits = given
    slots = verbs.idle_slots(MODEL, looks, S, R, CAPACITY, exits.fitted)
    tick, boundary = boundary_size.measure(
        MODEL, looks, CHOOSE, NO_END, params, slots, exits, SAMPLING.knobs()
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
        "clock": "CPU seconds of the process; tick and boundary in wall seconds",
        "tick_seconds": tick, "boundary_seconds": {str(C): boundary[C] for C in sizes},
        "chosen_boundary": chosen, "cases": table,
    }  # fmt: skip


def in_slots(params, requests, looks: Looks, exits: Exits, boundary: int) -> dict[str, float]:
    engine = Engine(
        MODEL, params, looks, exits, Size(S, boundary, R, CAPACITY, PROMPT), CHOOSE,
        SAMPLING.knobs(), NO_END,
    )  # fmt: skip
    began = time.process_time()
    loops = [drawn.loops for drawn in engine.run(requests)]
    seconds = time.process_time() - began
    return {
        "seconds_per_token": seconds / len(loops),
        "mean_loops": float(np.mean(loops)),
        "occupancy": engine.busy / (engine.ticks * S),
    }


def in_step(params, requests) -> dict[str, float]:
    fill, step = prefill(MODEL, R, CAPACITY), decode(MODEL, R)
    knobs, r = SAMPLING.knobs(), jnp.int32(R)
    began = time.process_time()
    for first in range(0, len(requests), S):
        rows = requests[first : first + S]
        keys = jnp.stack([request.key for request in rows])
        tokens = np.stack([request.prompt for request in rows])
        logits, cache = fill(params, tokens, np.full(S, PROMPT, np.int32), keys, r)
        token = choose_compiled(logits, cache.length, keys, knobs)
        for _ in range(NEW - 1):
            logits, cache = step(params, cache, token, keys, r)
            token = choose_compiled(logits, cache.length, keys, knobs)
        jax.block_until_ready(token)
    seconds = time.process_time() - began
    return {"seconds_per_token": seconds / (len(requests) * NEW), "mean_loops": float(R)}


if __name__ == "__main__":
    flags.DEFINE_string("out", "adaptive_decoding.json", "Where the JSON goes.")
    flags.DEFINE_integer("repeats", 5, "Rounds over all cases that count.")
    cli.run(main)
