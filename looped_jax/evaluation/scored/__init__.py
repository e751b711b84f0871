"""The held-out text that suites score, what models do on it, and intervals over it."""
