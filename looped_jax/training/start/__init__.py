"""What a run starts with: its data, and the parameters of another run."""
