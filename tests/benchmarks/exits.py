"""Whether exits save time when text is scored, not only loops: seconds against full depth.

    python -m tests.benchmarks.exits --workdir=runs/elastic/runs/…

Scores the same windows of a trained model with all R loops, with the training mean of loops for all
tokens, and with exit policies, each at the threshold that comes nearest to that mean. Two ways to
run exits: exited tokens stay in the batch until all have exited ("stay"), or leave it ("leave").
Ratios are to full depth; the exit tests are within the times. Without --workdir an elastic model is
trained for a minute first.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from rich.console import Console

from configs import elastic_depth
from looped_jax import cli, parallel
from looped_jax.config import resolve_json
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData
from looped_jax.evaluation.exit_carry import exit_scorer
from looped_jax.evaluation.exit_compact import score_compactly
from looped_jax.evaluation.exits import signal_scorer
from looped_jax.evaluation.policies import POLICIES, exit_loops, signals_of
from looped_jax.evaluation.probe import fit_probe
from looped_jax.evaluation.settings import Settings
from looped_jax.evaluation.trained import Trained
from looped_jax.evaluation.trajectory import depth_scorer
from looped_jax.training import state as states
from looped_jax.training.checkpoints import restore_params
from looped_jax.training.progress import Display
from looped_jax.training.run_folder import RunFolder
from looped_jax.training.trainer import train

WINDOWS = 32
REPEATS = 5


def main(_: list[str]) -> None:
    given = flags.FLAGS.workdir
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(given or train_for_a_minute(Path(scratch)))
        run = resolve_json(folder.read_config())
        mesh = parallel.mesh_from_text("data:1,fsdp:1,tensor:1", jax.devices()[:1])
        with parallel.active(mesh):
            params = restore_params(
                folder.checkpoints_path, states.abstract_params(run.model, mesh)
            ).state
            data = TokenData.open(run.data.folder)
            display = Display(Console(quiet=True))
            measure(Trained(run, params, data, mesh, folder, display, Settings()))


def measure(trained: Trained) -> None:
    run, params, mesh = trained.run, trained.params, trained.mesh
    model, chunk, T = run.model, run.loss.chunk, run.data.sequence_length
    R, mean = 2 * model.recurrences, model.recurrences
    probe = fit_probe(trained, range(4 * WINDOWS), R).probe
    starts = (4 * WINDOWS + np.arange(WINDOWS)) * T
    tokens = jnp.asarray(trained.data.validation.windows(starts, T + 1))
    mask = jnp.ones((WINDOWS, T), bool)
    (loops, logits), _ = jax.device_get(
        signal_scorer(model, R, chunk, mesh)(params, tokens, mask, probe)
    )
    flat = lambda x: x.reshape(R, -1)
    signals = signals_of(jax.tree.map(flat, loops), flat(logits))

    def uniform(depth: int) -> Callable[[], object]:
        scorer = depth_scorer(model, (depth,), chunk, mesh)
        return lambda: scorer(params, tokens, mask)

    baseline = best_seconds(uniform(R))
    loss = float(np.mean(jax.device_get(uniform(R)()[0])))
    print(f"{run.name}: {WINDOWS} windows of {T} tokens, R = {R}, training mean {mean}")
    show("full depth", R, loss, baseline, baseline)
    show(
        "uniform at the mean", mean, float(np.mean(jax.device_get(uniform(mean)()[0]))),
        best_seconds(uniform(mean)), baseline,
    )  # fmt: skip
    for name in ("change", "probe", "kl"):
        threshold = nearest_threshold(signals[POLICIES[name].signal], mean)
        stay = exit_scorer(model, name, "carry", R, chunk, mesh)
        bound = jnp.float32(threshold)
        ways = {
            "stay": lambda stay=stay, bound=bound: stay(params, tokens, mask, probe, bound)[0],
            "leave": lambda name=name, threshold=threshold: score_compactly(
                model, params, tokens, name, probe, threshold, recurrences=R, chunk=chunk
            ),
        }
        for way, score in ways.items():
            exits = jax.device_get(score())
            seconds = best_seconds(score)
            show(f"{name}, {way}", exits.loop.mean(), exits.nats.mean(), seconds, baseline)


def nearest_threshold(signal_RN: np.ndarray, depth: float) -> float:
    finite = signal_RN[np.isfinite(signal_RN)]
    candidates = np.unique(np.quantile(finite, np.linspace(0, 1, 401)))
    depths = [exit_loops(signal_RN.copy(), x).mean() for x in candidates]
    return float(candidates[np.argmin(np.abs(np.asarray(depths) - depth))])


def show(name: str, loops: float, loss: float, seconds: float, baseline: float) -> None:
    print(
        f"  {name:<20} {loops:6.2f} loops   {loss:.4f} nats   {seconds * 1e3:8.1f} ms   "
        f"{seconds / baseline:.2f} × full depth"
    )


def best_seconds(score: Callable[[], object]) -> float:
    """Of the fastest of some calls, after those that compile."""
    jax.block_until_ready(score())
    fastest = np.inf
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(score())
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def train_for_a_minute(scratch: Path) -> Path:
    config = elastic_depth.cpu(mean=6, depth="lognormal_poisson")
    prepare("bundled", scratch / "data", vocab_size=512, say=str)
    config.data.folder = str(scratch / "data")
    config.budget.tokens = 2.5e5
    config.mesh = "data:1,fsdp:1,tensor:1"
    config.evaluation.max_windows = 64
    train(config, scratch / "run", "may", Display())
    return scratch / "run"


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder of a finished elastic run.")
    cli.run(main)
