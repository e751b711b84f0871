"""How fast a training step is on this machine, beside what the machine's own matrix product does.

    python -m tests.benchmarks.train_step            # about six minutes on two CPU cores

On a GPU or TPU it is the iso-depth model s = 10, r = 4, with plain and with fused attention:
tokens/s, MFU, the most memory in use, and the share of attention, timed by itself at its shape.

On CPUs each core is a device, as with JAX_NUM_CPU_DEVICES=2: a step is timed on one device, which
all cores work for, and with its batch over the devices (mesh data:-1). Every line is one whole step
(forward, backward, loss, MuonH + AdamW): tokens/s, GFLOP/s by the analytic count of
`accounting.py`, and the share of the rate of a 1024 x 1024 x 1024 float32 product timed in the same
process, right before and after. Recomputed activations and the optimiser's own products are work
that the count leaves out. The baseline is the same model under plain JAX autodiff: a scan over
recurrences, every layer recomputed, and whole logits. First come, for the quickstart's smallest
model, ratios of the processor time of a step, and of compiling it, as LLVM's level 1 makes it
to XLA's own choice.
"""

import math
import os
import resource
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs import base, isodepth, quickstart
from looped_jax import parallel
from looped_jax.config import RunConfig, resolve
from looped_jax.model.attention import causal_attention
from looped_jax.model.lm import LoopedLM
from looped_jax.training import state as states
from looped_jax.training import step
from looped_jax.training.record.utilisation import device_memory, utilisation
from looped_jax.training.start.attention import attention_of
from looped_jax.training.step import train_step

# width, T, B, V: the two shapes that are tracked.
SHAPES = ((256, 256, 8, 4096), (64, 128, 16, 2048))
SECONDS = 8.0
SEQUENCES = 8  # a device, on accelerators
ONE_DEVICE, ALL_DEVICES = "data:1,fsdp:1,tensor:1", "data:-1,fsdp:1,tensor:1"


def run_of(
    width: int, length: int, batch: int, vocabulary: int, r: int, *, applied: int | None = None,
    mesh: str = ONE_DEVICE,
) -> RunConfig:  # fmt: skip
    """The iso-depth model 2 + 16 + 2 at this shape; its block applied `applied` times, or r."""
    c = base.get_config()
    c.model = base.isodepth_model(
        vocab_size=vocabulary, width=width, head_dim=64, effective_layers=20, ends=2,
        recurrences=r, max_length=length,
    )  # fmt: skip
    c.model.remat = "layer"
    if applied is not None:
        c.model.recurrences = applied
    c.data.sequence_length, c.data.batch_size = length, batch
    c.mesh = mesh
    return resolve(c)


def median_seconds(call: Callable[[], Any]) -> float:
    """Median time of a call that is repeated for SECONDS, five times at least."""
    times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS or len(times) < 5:
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


def matrix_rate() -> float:
    """FLOP/s of a 1024^3 float32 product, the median of 40."""
    square = jnp.ones((1024, 1024))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    times = []
    for _ in range(40):
        begun = time.perf_counter()
        jax.block_until_ready(product(square, square))
        times.append(time.perf_counter() - begun)
    return 2 * 1024**3 / float(np.median(times))


class Stepping:
    """A training state and the compiled step that moves it."""

    def __init__(self, run: RunConfig, make_step: Callable[..., Any]):
        self._mesh = mesh = parallel.mesh_from_text(run.mesh)
        optimizer = states.make_optimizer(run.optimizer.rule)
        self.state = states.init_state(run.model, optimizer, mesh, 0)
        schedule, _ = states.make_schedule(run)
        shape = (run.data.batch_size, run.data.sequence_length + 1)
        tokens = jax.random.randint(jax.random.key(0), shape, 0, run.model.vocab_size)
        tokens = jax.device_put(tokens, parallel.rows(mesh))
        step = make_step(run, mesh)
        self._step = lambda state: step(state, {"tokens": tokens}, schedule, np.uint32(0))
        begun = time.perf_counter()
        self()
        self.compile_seconds = time.perf_counter() - begun

    def __call__(self) -> Any:
        with parallel.active(self._mesh):
            self.state, metrics = self._step(self.state)
        return jax.block_until_ready(metrics)


def plain_step(run: RunConfig, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """The same step in plain JAX: autodiff through a scan, layers recomputed, whole logits."""
    del mesh
    lm, optimizer = LoopedLM(run.model), states.make_optimizer(run.optimizer.rule)

    def loss(params, batch):
        tokens_BT = batch["tokens"]
        apply = lambda method, *args: lm.apply({"params": params}, *args, method=method)
        input_BTD = apply("prelude", apply("embed", tokens_BT[:, :-1]))
        body = lambda h, i: (apply("recur", h, input_BTD, i), None)
        indices = jnp.arange(run.model.recurrences)
        state, _ = jax.lax.scan(body, apply("initial_state", input_BTD), indices)
        logits_BTV = apply("readout", apply("coda", state))
        return jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(logits_BTV, tokens_BT[:, 1:])
        )

    def step(state, batch, schedule, seed):
        del seed
        value, gradients = jax.value_and_grad(loss)(state.params, batch)
        updates, new = optimizer.update(gradients, state.optimizer, state.params, schedule=schedule)
        return states.TrainState(optax.apply_updates(state.params, updates), new), {"loss": value}

    return jax.jit(step, donate_argnums=0)


def measure(label: str, run: RunConfig, make_step: Callable[..., Any]) -> tuple[float, float]:
    """Prints one line and returns the seconds of a step, and those of compiling it."""
    stepping = Stepping(run, make_step)
    before = matrix_rate()
    seconds = median_seconds(stepping)
    rate = (before + matrix_rate()) / 2
    flops = run.flops_per_token * run.batch_tokens / seconds
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{label:<34} {seconds * 1e3:8.1f} ms {run.batch_tokens / seconds:9,.0f} tokens/s "
        f"{flops / 1e9:7.1f} GFLOP/s = {flops / rate:.3f} of {rate / 1e9:.0f}   "
        f"compiled in {stepping.compile_seconds:.1f} s, process peak {peak_gib:.2f} GiB",
        flush=True,
    )
    return seconds, stepping.compile_seconds


def compare_levels(r: int) -> None:
    """Prints ratios of LLVM's level 1 to XLA's own, of the smallest model of the quickstart study.

    The two take turns and their processor time is counted, which other work changes little.
    """
    config = quickstart.get_config(f"r={r},width=24")
    config.mesh = ONE_DEVICE
    run, made, compiling = resolve(config), [], []
    own = lambda mesh: None
    for options in (own, step._compiler_options, own):  # the first one to warm up
        step._compiled_step.cache_clear()
        with mock.patch.object(step, "_compiler_options", options):
            begun = time.process_time()
            made.append(Stepping(run, train_step))
            compiling.append(time.process_time() - begun)
    step._compiled_step.cache_clear()
    made, compiling, ratios = made[1:], compiling[1:], []
    start = time.perf_counter()
    while time.perf_counter() - start < 2 * SECONDS:
        seconds = [_processor_seconds(stepping) for stepping in made]
        ratios.append(seconds[0] / seconds[1])
    error = 1.25 * np.std(ratios) / math.sqrt(len(ratios))  # of a median
    print(
        f"quickstart, width 24, r={r}: level 1 to XLA's own, a step {np.median(ratios):.3f} ± "
        f"{error:.3f}, compiling {compiling[0] / compiling[1]:.2f} of {compiling[1]:.1f} s",
        flush=True,
    )


def _processor_seconds(stepping: Stepping) -> float:
    begun = time.process_time()
    for _ in range(5):
        stepping()
    return time.process_time() - begun


def attention_seconds(run: RunConfig) -> float:
    """Forward, again and backward, of the attention of all layers of a step on its mesh."""
    m, mesh = run.model, parallel.mesh_from_text(run.mesh)
    shape = (run.data.batch_size, run.data.sequence_length, m.heads, m.head_dim)
    qkv = jax.device_put(jnp.ones((3, *shape), m.compute_dtype), parallel.replicated(mesh))

    @jax.jit
    def gradients(qkv):
        rows = lambda x: nn.with_logical_constraint(x, ("batch", "length", "heads", None))
        of_layer = lambda q, k, v: causal_attention(rows(q), rows(k), rows(v), m.attention)
        kept = jax.checkpoint(of_layer)
        return jax.grad(lambda qkv: jnp.sum(kept(*qkv).astype(jnp.float32)))(qkv)

    with parallel.active(mesh):
        jax.block_until_ready(gradients(qkv))
        return m.effective_layers * median_seconds(lambda: gradients(qkv))


def measure_on_accelerator(sequences: int) -> None:
    """One line for each kernel: so many sequences a device of the iso-depth model s = 10, r = 4."""
    for kernel in ("xla", "auto"):
        config = isodepth.get_config("r=4,s=10")
        config.data.batch_size = sequences * jax.device_count()
        config.mesh, config.model.attention = ALL_DEVICES, kernel
        run = resolve(config)
        chosen, _ = attention_of(run, parallel.mesh_from_text(run.mesh))
        stepping = Stepping(run, train_step)
        seconds = median_seconds(stepping)
        rate = run.flops_per_token * run.batch_tokens / seconds
        found = utilisation(rate, jax.devices()[0].device_kind, jax.device_count())
        found |= device_memory()
        print(
            f"  {chosen:<8}{seconds * 1e3:8.1f} ms {run.batch_tokens / seconds:11,.0f} tokens/s  "
            f"MFU {found.get('share_of_peak', math.nan):.3f}  peak "
            f"{found.get('peak_memory_bytes', math.nan) / 2**30:.2f} GiB  attention "
            f"{attention_seconds(run) / seconds:.2f} of it  compiled in "
            f"{stepping.compile_seconds:.1f} s",
            flush=True,
        )


def main() -> None:
    # As many as cores, and a power of two so that batches divide; other platforms ignore it.
    jax.config.update("jax_num_cpu_devices", 2 ** int(math.log2(min(os.cpu_count() or 1, 8))))
    print(f"{jax.device_count()} devices: {jax.devices()[0].device_kind}")
    if jax.default_backend() != "cpu":
        print(f"iso-depth s=10 r=4 T=2048, {SEQUENCES} sequences a device")
        measure_on_accelerator(SEQUENCES)
        return
    for r in (1, 4):
        compare_levels(r)
    for shape in SHAPES:
        print("d={} T={} B={} V={}, r=4".format(*shape))
        one, _ = measure("  one device", run_of(*shape, r=4), train_step)
        plain, _ = measure("  plain autodiff, remat by layer", run_of(*shape, r=4), plain_step)
        print(f"  ratio of step times, ours to plain: {one / plain:.2f}")
        if jax.device_count() > 1:
            spread, _ = measure("  data:-1", run_of(*shape, r=4, mesh=ALL_DEVICES), train_step)
            print(f"  ratio of step times, data:-1 to one device: {spread / one:.2f}")
    print("compiling at d={} T={} B={} V={}".format(*SHAPES[1]))
    _, eight = measure("  2 + 2 x 8 + 2 layers", run_of(*SHAPES[1], r=8), train_step)
    _, once = measure("  2 + 2 + 2 layers", run_of(*SHAPES[1], r=8, applied=1), train_step)
    _, flat = measure("  20 layers in one stack", run_of(*SHAPES[1], r=1), train_step)
    print(f"  ratio of compile times, r=8 to the same block once: {eight / once:.2f}")
    print(f"  ratio of compile times, r=8 to one stack of as many layers: {eight / flat:.2f}")


if __name__ == "__main__":
    main()
