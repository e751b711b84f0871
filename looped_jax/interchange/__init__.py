"""Checkpoints of other projects into run folders, and ours into safetensors."""
