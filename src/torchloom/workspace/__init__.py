"""The user's own folders, copied for an app so that later edits do not reach it.

Read dir_workspace.py for the copy; sources.py records the git state of the originals.
"""
