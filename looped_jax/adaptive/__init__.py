"""Adaptive depth: every token loops until a signal of its own says that it has settled."""

from looped_jax.adaptive.batch import ScoredText, score

__all__ = ["ScoredText", "score"]
