"""The kinds of faults: their conditions and targets, how they are injected and undone.

Read `actions` first, which has a table of all.
"""
