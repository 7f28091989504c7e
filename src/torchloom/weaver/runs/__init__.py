"""Runs as experiments: provenance, summary, lists, comparison. Read `experiments` first."""
