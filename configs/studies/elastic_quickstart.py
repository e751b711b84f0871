"""Elastic depth on the bundled novels, in 15 minutes on two CPU cores (arXiv:2607.14427 in small).

    python -m looped_jax.data.prepare --source=bundled --out=data/novels_512 --vocab_size=512
    python -m launch.sweep --study=configs/studies/elastic_quickstart.py --out=runs/elastic
    python -m looped_jax.evaluate --workdir=runs/elastic --suites=depth,convergence,exits
    python -m analysis report runs/elastic --out=runs/elastic/analysis

Two models whose depth is drawn at every step, with means 4 and 8, and one that always runs 4
recurrences; the same width, text and tokens. Is the useful depth the training mean? Does a fixed
depth hold only itself? Where do tokens settle, and what does it save to stop them there?
"""

from ml_collections import ConfigDict

from configs import elastic_depth

MODELS = ((4, "lognormal_poisson"), (8, "lognormal_poisson"), (4, "fixed"))  # (mean, sampler)
TOKENS = 1.5e6
WINDOWS = 512  # held-out windows of 64 tokens that are scored


def get_runs() -> list[ConfigDict]:
    """One config per model."""
    runs = []
    for mean, depth in MODELS:
        config = elastic_depth.cpu(mean=mean, depth=depth)
        config.study = "elastic_quickstart"
        config.budget.tokens = TOKENS
        config.evaluation.max_windows = WINDOWS
        runs.append(config)
    return runs
