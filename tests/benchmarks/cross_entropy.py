"""The chunked cross-entropy against the plain one: time and memory of loss and gradients.

    python -m tests.benchmarks.cross_entropy

Also prints the time of the three matrix products that no variant can avoid.
"""

import time

import jax
import jax.numpy as jnp

from looped_jax.training.losses import chunked_cross_entropy

SOFTCAP = 15.0
SHAPES = (  # tokens, width, vocabulary, chunks
    (2048, 256, 4096, (2048, 1024, 512, 256)),
    (512, 32, 512, (512, 256, 128)),
)
SECONDS = 2.0


def plain(h_ND, kernel_DV, targets_N):
    logits_NV = SOFTCAP * jnp.tanh(h_ND @ kernel_DV / SOFTCAP)
    target_N = jnp.take_along_axis(logits_NV, targets_N[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits_NV, axis=1) - target_N)


def products(h_ND, kernel_DV, _targets_N):
    logits_NV = h_ND @ kernel_DV
    return logits_NV @ kernel_DV.T, h_ND.T @ logits_NV


def main() -> None:
    for tokens, width, vocabulary, chunks in SHAPES:
        keys = jax.random.split(jax.random.key(0), 3)
        h = jax.random.normal(keys[0], (tokens, width))
        kernel = 0.1 * jax.random.normal(keys[1], (width, vocabulary))
        args = (h, kernel, jax.random.randint(keys[2], (tokens,), 0, vocabulary))
        print(f"N = {tokens}, D = {width}, V = {vocabulary}: loss and gradients")
        base_s, base_mib = cost(jax.value_and_grad(plain, argnums=(0, 1)), args)
        print(f"  plain           {base_s * 1e3:8.2f} ms          {base_mib:7.1f} MiB")
        floor_s, _ = cost(products, args)
        print(f"  three products  {floor_s * 1e3:8.2f} ms  {floor_s / base_s:.2f} ×")
        for chunk in chunks:
            chunked = lambda h, kernel, y, chunk=chunk: chunked_cross_entropy(
                h, kernel, y, softcap=SOFTCAP, chunk=chunk
            )
            seconds, mib = cost(jax.value_and_grad(chunked, argnums=(0, 1)), args)
            print(
                f"  chunk {chunk:<9} {seconds * 1e3:8.2f} ms  {seconds / base_s:.2f} ×  "
                f"{mib:7.1f} MiB  {mib / base_mib:.2f} ×"
            )


def cost(function, args) -> tuple[float, float]:
    """(seconds of the fastest call within two seconds, MiB of temporary memory)."""
    compiled = jax.jit(function).lower(*args).compile()
    jax.block_until_ready(compiled(*args))
    fastest, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        fastest = min(fastest, time.perf_counter() - start)
    return fastest, compiled.memory_analysis().temp_size_in_bytes / 2**20


if __name__ == "__main__":
    main()
