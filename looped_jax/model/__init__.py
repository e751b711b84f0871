"""The network: pure Flax, no I/O, no globals."""
