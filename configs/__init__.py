"""Configurations: one file per published model, and studies (grids of runs)."""
