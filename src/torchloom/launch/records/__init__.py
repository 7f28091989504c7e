"""What is kept of a run: its request, its folder, its record, and the catalog of all runs of this
state folder.

The supervisor writes; every command, the server and the weaver read. Read folder.py first.
"""
