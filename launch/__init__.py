"""Scripts and programs that start runs: quickstart, tests, sweeps."""

from looped_jax import missing_package as missing_package
