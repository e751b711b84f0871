"""Text from a looped model, at any depth, with a cache of keys and values."""
