"""Agents, ranks and devices, and what is done when they fail. Read `roster` first."""
