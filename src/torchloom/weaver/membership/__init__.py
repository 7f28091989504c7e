"""Carry out what `rules/membership` decides: a rank dies, the others stay up, another comes."""
