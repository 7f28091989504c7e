"""What each kind of fault needs, hits, does, and how it is undone.

Read `actions` first: one table of all.
"""
