"""The parts of `looped_jax.data.prepare`."""
