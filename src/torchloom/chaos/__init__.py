"""Hurt a running job on purpose, and look whether it keeps its promises."""
