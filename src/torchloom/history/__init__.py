"""What is left of runs: curves, plots, and how one run differs from another.

A MetricSeries comes in; text, pictures and differences go out. Read series.py first.
"""
