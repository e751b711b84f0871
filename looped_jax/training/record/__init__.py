"""What a run writes down about itself beside its metrics: where it ran, how well, and traces."""
