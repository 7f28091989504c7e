"""The logs of jobs by line: read, searched by patterns that run in a process of their own, paged.

Read `lines` first.
"""
