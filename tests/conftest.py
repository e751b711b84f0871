"""Strictness for the whole suite: implicit promotion and silent broadcasting are errors."""

import os

# Eight simulated devices, before jax starts a backend; sharding tests need them.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
