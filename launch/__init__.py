"""Scripts and programs that start runs: quickstart, tests, sweeps."""
