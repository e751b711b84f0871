"""What a sweep says: plans, progress, results."""
