"""Looped (depth-recurrent) language models in JAX: train, measure and use them."""

from looped_jax import missing_package as missing_package
