"""What drawing the depth at every step costs, against steps of the mean depth.

    python -m tests.benchmarks.sampled_depth

Times the same number of training steps twice: with a depth drawn at each, over a stretch of steps
whose draws add up to exactly the mean, and with the depth fixed at the mean. Then prints how the
memory of the compiled step grows with the most recurrences it can run.
"""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from configs import elastic_depth
from looped_jax import parallel
from looped_jax.config import RunConfig, resolve
from looped_jax.training import state as states
from looped_jax.training.depth import DepthSampler
from looped_jax.training.step import train_step

SHAPES = ((64, 64, 16, 512), (256, 128, 8, 2048))  # width, T, B, vocabulary
MEAN = 4
STEPS = 16
REPEATS = 7


def main() -> None:
    mesh = parallel.mesh_from_text("data:1,fsdp:1,tensor:1", jax.devices()[:1])
    with parallel.active(mesh):
        for shape in SHAPES:
            print(f"\nwidth {shape[0]}, T = {shape[1]}, B = {shape[2]}, vocabulary {shape[3]}")
            time_steps(shape, mesh)
            memory(shape, mesh)


def time_steps(shape, mesh) -> None:
    sampled = Steps(run_of(shape, "lognormal_poisson"), mesh)
    fixed = Steps(run_of(shape, "fixed"), mesh)
    first = stretch_of_mean_depth(sampled.run)
    best = {}
    for _ in range(REPEATS):  # in turn, so that a busy moment hits both
        for name, steps in (("sampled", sampled), ("fixed", fixed)):
            best[name] = min(best.get(name, np.inf), steps.seconds(first))
    for name, steps in (("fixed", fixed), ("sampled", sampled)):
        ms = best[name] / STEPS * 1e3
        print(
            f"  {name:<8} {ms:7.1f} ms a step   {best[name] / best['fixed']:.3f} × fixed   "
            f"compiled in {steps.compile_seconds:.1f} s, {steps.programs()} program"
        )


def memory(shape, mesh) -> None:
    width, T, B, _ = shape
    held = {}
    for most in (8, 16, 32):
        run = run_of(shape, "lognormal_poisson", most)
        compiled = Steps(run, mesh).compiled
        held[most] = compiled.memory_analysis().temp_size_in_bytes
    growth = (held[32] - held[8]) / 24
    state = B * T * width * 4
    mib = ", ".join(f"{most}: {size / 2**20:.1f}" for most, size in held.items())
    print(f"  temporary memory by most recurrences, MiB: {mib}")
    print(f"  growth per recurrence {growth / 2**20:.3f} MiB = {growth / state:.2f} × the state")


def run_of(shape: tuple[int, int, int, int], depth: str, most: int = 3 * MEAN) -> RunConfig:
    width, T, B, vocabulary = shape
    config = elastic_depth.cpu(mean=MEAN, depth=depth)
    config.model = elastic_depth.model(
        vocab_size=vocabulary, width=width, heads=4, mlp_hidden=3 * width, layers=(1, 2, 1),
        mean=MEAN, max_length=T,
    )  # fmt: skip
    config.model.max_recurrences = most
    config.depth = elastic_depth.depth_section(depth, MEAN, most)
    config.data.sequence_length, config.data.batch_size = T, B
    return resolve(config)


class Steps:
    """The compiled step of a run, and a state to run it on."""

    def __init__(self, run: RunConfig, mesh):
        self.run = run
        optimizer = states.make_optimizer(run.optimizer.rule)
        self._state = states.init_state(run.model, optimizer, mesh, 0)
        self._schedule, _ = states.make_schedule(run)
        shape = (run.data.batch_size, run.data.sequence_length + 1)
        tokens = np.random.default_rng(0).integers(0, run.model.vocab_size, shape)
        self._batch = {"tokens": jax.device_put(tokens.astype(np.int32), parallel.rows(mesh))}
        self._step = train_step(run, mesh)
        start = time.perf_counter()
        lowered = self._step.lower(self._state, self._batch, self._schedule, jnp.uint32(0))
        self.compiled = lowered.compile()
        self.compile_seconds = time.perf_counter() - start

    def seconds(self, first: int) -> float:
        """Of STEPS steps from number `first` on."""
        numbered = self._state.optimizer._replace(step=jnp.int32(first))
        state = dataclasses.replace(self._state, optimizer=numbered)
        start = time.perf_counter()
        for _ in range(STEPS):
            state, metrics = self._step(state, self._batch, self._schedule, jnp.uint32(0))
        jax.block_until_ready(metrics)
        seconds = time.perf_counter() - start
        self._state = state
        return seconds

    def programs(self) -> int:
        return self._step._cache_size()


def stretch_of_mean_depth(run: RunConfig) -> int:
    """The first of STEPS consecutive steps whose drawn depths have exactly the mean."""
    sampler = DepthSampler(run.depth)
    draw = jax.jit(jax.vmap(lambda step: sampler.sample(jnp.uint32(0), step, 1)))
    depths = np.asarray(draw(jnp.arange(4096)))
    sums = np.convolve(depths, np.ones(STEPS, int), "valid")
    return int(np.flatnonzero(sums == MEAN * STEPS)[0])


if __name__ == "__main__":
    main()
