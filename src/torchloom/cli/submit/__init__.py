"""`loom run` and `loom plan`: from a command line to a submitted job that is followed.

Read `target` first.
"""
