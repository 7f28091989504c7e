"""What is left of runs: curves, plots, and how one run differs from another."""
