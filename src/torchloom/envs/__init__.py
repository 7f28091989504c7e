"""A job's environment: its variables for another shell, its Python packages for other hosts.

Read saved.py for variables; archive.py packs an environment into a file, push.py sends it.
"""
