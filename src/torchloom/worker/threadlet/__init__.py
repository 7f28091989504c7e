"""The threadlet: a rank's link to its agent. It sends progress and metrics, and receives commands.

Nothing here may cost a step more than a microsecond, block it or fail it: if the threadlet breaks,
training continues without it. Start with `threadlet.py`, which puts the parts together.
"""
