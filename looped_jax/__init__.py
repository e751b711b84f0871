"""Looped (depth-recurrent) language models in JAX: train, measure and use them."""
