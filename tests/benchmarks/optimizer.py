"""What an update costs: MuonH over stacked layers against one matrix at a time and against AdamW.

    python -m tests.benchmarks.optimizer

Prints, for two model sizes, milliseconds per update, the share of the machine's rate for a 1024³
float32 product that the Newton–Schulz steps reach, and compile times.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from looped_jax.training.optimizer import Schedule, adamw, muonh_adamw, newton_schulz

SIZES = ((32, (1, 8, 1), 512), (256, (2, 4, 2), 4096))  # width, layers of the stacks, vocabulary
SECONDS = 2.0


def main() -> None:
    square = jnp.ones((1024, 1024))
    peak = 2 * 1024**3 / timed(jax.jit(jnp.matmul), square, square)
    print(f"1024³ float32 product: {peak / 1e9:.0f} GFLOP/s")
    for width, layers, vocabulary in SIZES:
        params, grads = (parameters(width, layers, vocabulary, seed) for seed in (0, 1))
        print(f"\nwidth {width}, {sum(layers)} layers, vocabulary {vocabulary}")
        kernels = stacks(params)
        flops = sum(newton_schulz_flops(kernel) for kernel in kernels)
        together = timed(jax.jit(lambda ks: [newton_schulz(k) for k in ks]), kernels)
        matrices = [matrix for kernel in kernels for matrix in kernel]
        apart = timed(jax.jit(lambda ms: [newton_schulz(m) for m in ms]), matrices)
        print(
            f"Newton–Schulz, stacked  {together * 1e3:8.2f} ms  "
            f"{flops / together / peak:.2f} of the product's rate"
        )
        print(
            f"Newton–Schulz, apart    {apart * 1e3:8.2f} ms  {apart / together:.2f} × the stacked, "
            f"{len(matrices)} matrices"
        )
        baseline = None
        for name, optimizer in optimizers().items():
            ms, compile_s = update_cost(optimizer, params, grads)
            baseline = baseline or ms
            print(
                f"update, {name:<15} {ms:8.2f} ms  {ms / baseline:.2f} × AdamW, "
                f"compiled in {compile_s:.1f} s"
            )


def optimizers() -> dict[str, optax.GradientTransformationExtraArgs]:
    decayed = ("matrix", "embedding", "unembedding")
    return {
        "AdamW": adamw(b1=0.9, b2=0.95, eps=1e-8, decay=0.1, decayed_groups=decayed, clip_norm=1.0),
        "MuonH + AdamW": muonh_adamw(momentum=0.95, b1=0.8, b2=0.95, eps=1e-10),
    }


def update_cost(optimizer, params, grads) -> tuple[float, float]:
    """(milliseconds of an update, seconds to compile it)."""
    rates = dict.fromkeys(("all", "matrix", "embedding", "unembedding", "norm"), 0.01)
    schedule = Schedule.of(
        total_steps=9, warmup_steps=0, warmdown_share=1.0, final_fraction=0.1, peak_rates=rates
    )
    state = optimizer.init(params)

    def step(params, state, grads, schedule):
        updates, state = optimizer.update(grads, state, params, schedule=schedule)
        return optax.apply_updates(params, updates), state

    start = time.perf_counter()
    compiled = jax.jit(step).lower(params, state, grads, schedule).compile()
    compile_s = time.perf_counter() - start
    return timed(compiled, params, state, grads, schedule) * 1e3, compile_s


def parameters(width: int, layers: tuple[int, ...], vocabulary: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))
    tree = {
        "embed": {"embedding": normal(vocabulary, width)},
        "injection": {"kernel": normal(2 * width, width)},
        "head": {"kernel": normal(width, vocabulary)},
    }
    for stack, n in zip(("prelude", "core", "coda"), layers, strict=True):
        tree[stack] = {
            "attn": {
                "qkv": {"kernel": normal(n, width, 3, width)},
                "out": {"kernel": normal(n, width, width)},
            },
            "mlp": {
                "up": {"kernel": normal(n, width, 4 * width)},
                "down": {"kernel": normal(n, 4 * width, width)},
            },
            "attn_norm": {"scale": normal(n, width)},
            "mlp_norm": {"scale": normal(n, width)},
        }
    return tree


def stacks(params: dict) -> list[jax.Array]:
    """The kernels that MuonH updates, each as (matrices, in, out)."""
    found = [params["injection"]["kernel"][None]]
    for stack in ("prelude", "core", "coda"):
        attn, mlp = params[stack]["attn"], params[stack]["mlp"]
        qkv = jnp.moveaxis(attn["qkv"]["kernel"], 2, 1)
        found += [qkv.reshape(-1, *qkv.shape[2:]), attn["out"]["kernel"]]
        found += [mlp["up"]["kernel"], mlp["down"]["kernel"]]
    return found


def newton_schulz_flops(kernel: jax.Array) -> int:
    n, rows, columns = kernel.shape
    small, large = min(rows, columns), max(rows, columns)
    return n * 5 * (2 * 2 * small**2 * large + 2 * small**3)


def timed(function, *args) -> float:
    """Seconds of the fastest call within about two seconds."""
    jax.block_until_ready(function(*args))
    fastest, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


if __name__ == "__main__":
    main()
