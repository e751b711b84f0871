"""Losses, optimisers, the step, the trainer and what it writes."""
