"""Carry out what `rules/live` decides: a rank dies, the others stay up, another comes."""
