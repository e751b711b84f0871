"""A task whose answers need 1 to 8 loops by construction: does depth by token pay there?

    python -m looped_jax.data.prepare --source=hops --out=data/hops
    python -m launch.sweep --study=configs/studies/hops.py --out=runs/hops

"17 k3 4" says f(f(f(17))) = 4 for a fixed permutation f (looped_jax/data/hops.py). Loop i is
supervised with min(i, k) hops, so each loop learns one; three seeds.
"""

from ml_collections import ConfigDict

from configs import base, elastic_depth

SEEDS = (0, 1, 2)
LOOPS = 8  # as many as the task has hops


def get_runs() -> list[ConfigDict]:
    """One config per seed."""
    return [run(seed=seed) for seed in SEEDS]


def run(*, seed: int) -> ConfigDict:
    """1 layer, then 1 layer looped 8 times, of width 64."""
    c = base.get_config()
    c.name = f"hops_seed{seed}"
    c.study = "hops"
    c.seed = seed
    c.data.folder = "data/hops"
    c.data.sequence_length = 48  # 16 triples
    c.data.batch_size = 16
    c.budget.tokens = 0.0
    c.budget.steps = 900
    c.model = elastic_depth.model(
        vocab_size=41, width=64, heads=2, mlp_hidden=256, layers=(1, 1, 0), mean=LOOPS,
        max_length=48,
    )  # fmt: skip
    c.model.initial_state = "input"
    c.model.initial_state_std = 0.0
    c.model.state_norm = "every"
    c.depth = base.fixed_depth()
    c.loss.supervision = "by_loop"
    c.optimizer = base.adamw(
        rate=5e-3, decay=0.01, clip_norm=1.0, warmup_steps=30, warmdown_share=1.0
    )
    c.optimizer.b2 = 0.98
    c.evaluation.batch_size = 64
    c.checkpoint.every_steps = 300
    return c
