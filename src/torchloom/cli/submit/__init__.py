"""From the words of a command line to a job that runs: its target, its command line, the
submission and how it is followed.

Read `target` first.
"""
