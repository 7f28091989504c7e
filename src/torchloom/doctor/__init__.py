"""Whether this machine is fit to run ranks, and what crashed launches left on it.

A Place (this host and its folders) comes in; a list of Findings goes out. Read checks.py first.
"""
