"""Adaptive depth: every token loops until a signal of its own says that it has settled."""
