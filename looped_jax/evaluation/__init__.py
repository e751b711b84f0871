"""Measurements on trained models; each suite adds a part to summary.json."""
