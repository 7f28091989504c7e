"""Shared by the verbs that show or change jobs: JSON shapes, logs, commands to running
jobs, jobs of other engines and of planes on other hosts.

Read `job_shapes` first.
"""
