"""Generating with a cache against running the whole text again for every token.

    python -m tests.benchmarks.generation

For each kind of cache: its memory, and the time of a token at the end of a text, next to a forward
pass over that text without a cache.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from configs import elastic_depth
from looped_jax.generation import caches
from looped_jax.generation.decoding import decode, prefill
from looped_jax.model.boxes import unboxed
from looped_jax.model.config import ModelConfig
from looped_jax.model.lm import LoopedLM
from looped_jax.training.state import init_params

LENGTHS = (64, 512)
RECURRENCES = 8
BATCH = 4
REPEATS = 20


def main() -> None:
    section = elastic_depth.cpu(mean=4, depth="fixed").model
    section.max_length = max(LENGTHS)
    model = ModelConfig.from_tree(section.to_dict())
    params = unboxed(init_params(model, 0))
    r = jnp.int32(RECURRENCES)
    print(f"width {model.width}, r = {RECURRENCES}, {BATCH} rows")
    for length in LENGTHS:
        tokens = np.zeros((BATCH, length), np.int32)
        whole = jax.jit(
            lambda params, tokens, r: LoopedLM(model).apply({"params": params}, tokens, r)
        )
        base = seconds(lambda whole=whole, tokens=tokens: whole(params, tokens, r))
        print(f"{length} tokens\n  no cache          {base * 1e3:8.2f} ms a token")
        for kind in caches.KINDS:
            spent = of_cache(model, params, tokens, kind, r)
            size = caches.count_bytes(model, caches.count_kept(kind, RECURRENCES), BATCH, length)
            print(
                f"  {kind:<16}  {spent * 1e3:8.2f} ms a token  {spent / base:.3f} ×  "
                f"{size / 2**20:.2f} MiB"
            )


def of_cache(model, params, tokens, kind: str, r) -> float:
    """Seconds of the last token of a text."""
    B, length = tokens.shape
    slots = caches.count_kept(kind, RECURRENCES)
    keys = jax.vmap(jax.random.key)(jnp.arange(B, dtype=jnp.uint32))
    lengths = np.full(B, length - 1, np.int32)
    _, cache = prefill(model, slots, length)(params, tokens, lengths, keys, r)
    step = decode(model, slots)
    held = [cache]

    def one():
        # A full cache overwrites its last entry, so every call does the same work.
        logits, held[0] = step(params, held[0], tokens[:, -1], keys, r)
        return logits

    return seconds(one)


def seconds(function) -> float:
    """Of the fastest of several calls."""
    jax.block_until_ready(function())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
