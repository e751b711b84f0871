"""Studies: grids of runs for launch.sweep."""
