"""Run folders opened to be read and measured: by evaluate, generate, export and the notebook."""
